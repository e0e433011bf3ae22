// Who was trusted, and why: what is chosen, and the sentence about it.

let OPENING; // from `prepare` on
const NOBODY = "No client took part in any round.";

// What the page opens on: where most attackers are distrusted, or else most clients, the one of
// them with the lowest multiple in the last round in which it is distrusted. Where nobody is, the
// client that is trusted least.
function opening() {
  const cells = DATA.runs.flatMap(({ cells: all }, run) =>
    all.map((cell) => {
      const attackers = cell.distrusted.filter(({ client }) => cell.attackers.includes(client));
      return { run, cell, attackers, clients: cell.distrusted };
    }),
  );
  for (const who of ["attackers", "clients"]) {
    const most = cells.reduce((best, each) => (each[who].length > best[who].length ? each : best));
    const lowest = ({ client, place }) => overRounds(most.cell, client, multiple)[place];
    const [first] = [...most[who]].sort((a, b) => lowest(a) - lowest(b));
    if (first) return { ...most, ...first };
  }
  const infers = ({ cell }) => cell.rounds.some((round) => round.causes);
  const shown = cells.find(infers) ?? cells[0];
  const client = leastTrusted(shown.cell, clientsOf(shown.cell));
  return { ...shown, client, place: leastTrustedRound(shown.cell, client) };
}

// Why the client that the page opens on is distrusted, or else the first cause named of it, or of
// all; trust itself is much the same as the weights above.
function openingCause() {
  const { cell, client, place, reason } = OPENING;
  const { clients, causes } = cell.rounds[place];
  const names = causeNames(cell);
  const named = [reason, ...(causes?.named[clients.indexOf(client)] ?? [])];
  const cause = named.find((each) => names.includes(each)) ?? names[1];
  return cause && causeTitle(cause);
}

const trustRun = () => DATA.runs[at("trust-run") ? Number(at("trust-run").value) : 0];

function chooseRun() {
  const methods = [...new Set(trustRun().cells.map((cell) => cell.method))];
  fill(at("trust-method"), methods, chosenName(at("trust-method")) ?? OPENING.cell.method);
  chooseMethod();
}

function chooseMethod() {
  const cells = trustRun().cells.filter((cell) => cell.method === chosenName(at("trust-method")));
  const seeds = cells.map((cell) => cell.seed);
  fill(at("trust-seed"), seeds, chosenName(at("trust-seed")) ?? OPENING.cell.seed);
  chooseSeed();
}

function chosenCell() {
  const seed = chosenName(at("trust-seed"));
  return trustRun().cells.find(
    (cell) => cell.method === chosenName(at("trust-method")) && String(cell.seed) === seed,
  );
}

function chooseSeed() {
  const cell = chosenCell();
  at("trust-charts").hidden = !cell;
  if (!cell) {
    at("because").textContent = "No rounds are recorded, or none that could be read.";
    return;
  }
  const range = at("round");
  const clients = clientsOf(cell);
  const first = chosenName(at("client")) === undefined;
  range.max = cell.rounds.length - 1;
  fill(at("cause"), causeNames(cell).map(causeTitle), chosenName(at("cause")) ?? openingCause());
  at("causes-figure").hidden = !cell.rounds.some((round) => round.causes);
  at("graph-figure").hidden = !cell.rounds.some((round) => round.causes?.scored);
  fill(at("client"), clients, chosenName(at("client")) ?? OPENING.client);
  if (first) range.value = OPENING.place;
  trust();
}

const clientsOf = (cell) =>
  [...new Set(cell.rounds.flatMap((round) => round.clients))].sort((a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true }),
  );

const chosenClient = (cell) =>
  clientsOf(cell).find((each) => String(each) === chosenName(at("client")));

// Where each client of a round is in its lists; made once, since there may be thousands.
const placesOf = new WeakMap();
function placeIn(round, client) {
  if (!placesOf.has(round)) placesOf.set(round, new Map(round.clients.map((each, i) => [each, i])));
  return placesOf.get(round).get(client) ?? -1;
}

// What is known of a client in every round; null where it took no part.
const overRounds = (cell, client, value) =>
  cell.rounds.map((round) => {
    const i = placeIn(round, client);
    return i < 0 ? null : (value(round, i) ?? null);
  });

function multiple(round, i) {
  const weight = round.weight[i];
  const base = round.base_weight[i];
  return known(weight) && base > 0 ? weight / base : null;
}

function meanMultiple(cell, client) {
  const all = overRounds(cell, client, multiple).filter(known);
  return all.length ? sum(all) / all.length : null;
}

function leastTrusted(cell, clients) {
  const means = clients.map((client) => meanMultiple(cell, client) ?? Infinity);
  return clients[means.indexOf(smallest(means))];
}

function leastTrustedRound(cell, client) {
  const all = overRounds(cell, client, multiple).map((times) => times ?? Infinity);
  return all.indexOf(smallest(all));
}

function because(round, client, i) {
  const absent = client === undefined ? "no client took part" : `client ${client} took no part`;
  const [verdict, ...lines] = i < 0 ? [absent] : round.said[i];
  at("because").replaceChildren(
    element("p", `Round ${round.round}, ${verdict}.`),
    list(lines.map((line) => line.replaceAll("× ", "×\u00a0"))),
  );
}

function trust() {
  const cell = chosenCell();
  if (!cell) return;
  const place = Number(at("round").value);
  const round = cell.rounds[place];
  const client = chosenClient(cell);
  const i = round.clients.indexOf(client);
  at("round-shown").textContent = `${round.round} of ${cell.rounds[cell.rounds.length - 1].round}`;
  at("round").setAttribute("aria-valuetext", `round ${round.round}`);
  because(round, client, i);
  weights(cell, place, client);
  effects(round, i, client);
  course(cell, place, client);
  causeMap(cell, place, client);
  memory(cell, place, client);
  roundTable(cell, round, i);
  graph(round, i);
  exclusions(cell);
  markWide();
}
