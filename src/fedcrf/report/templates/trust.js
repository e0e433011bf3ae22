// Who was trusted, and why: what is chosen, and the sentence about it.

const trustRun = () => DATA.runs[at("trust-run") ? Number(at("trust-run").value) : 0];

function chooseRun() {
  const methods = [...new Set(trustRun().cells.map((cell) => cell.method))];
  const reasoned = trustRun().cells.find((cell) => cell.rounds.some((round) => round.causes));
  fill(at("trust-method"), methods, chosenName(at("trust-method")) ?? reasoned?.method);
  chooseMethod();
}

function chooseMethod() {
  const cells = trustRun().cells.filter((cell) => cell.method === chosenName(at("trust-method")));
  const seeds = cells.map((cell) => cell.seed);
  fill(at("trust-seed"), seeds, chosenName(at("trust-seed")));
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
  fill(at("cause"), causeNames(cell).map(causeTitle), chosenName(at("cause")));
  at("causes-figure").hidden = !cell.rounds.some((round) => round.causes);
  at("graph-figure").hidden = !cell.rounds.some((round) => round.causes?.scored);
  fill(at("client"), clients, chosenName(at("client")) ?? leastTrusted(cell, clients));
  if (first) range.value = leastTrustedRound(cell, chosenClient(cell));
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

// What is known of a client in every round; null where it took no part.
const overRounds = (cell, client, value) =>
  cell.rounds.map((round) => {
    const i = round.clients.indexOf(client);
    return i < 0 ? null : (value(round, i) ?? null);
  });

function multiple(round, i) {
  const weight = round.weight[i];
  const base = round.base_weight[i];
  return known(weight) && base > 0 ? weight / base : null;
}

function meanMultiple(cell, client) {
  const logs = overRounds(cell, client, multiple).filter((times) => times > 0).map(Math.log2);
  return logs.length ? 2 ** (sum(logs) / logs.length) : null;
}

function leastTrusted(cell, clients) {
  const means = clients.map((client) => meanMultiple(cell, client) ?? Infinity);
  return clients[means.indexOf(Math.min(...means))];
}

function leastTrustedRound(cell, client) {
  const all = overRounds(cell, client, multiple).map((times) => times ?? Infinity);
  return all.indexOf(Math.min(...all));
}

function because(round, client, i) {
  const [verdict, ...lines] = i < 0 ? [`client ${client} took no part`] : round.said[i];
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
