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
  fill(
    at("trust-seed"),
    cells.map((cell) => cell.seed),
    chosenName(at("trust-seed")),
  );
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
  fill(at("client"), clients, chosenName(at("client")) ?? leastTrusted(cell, clients));
  if (first) range.value = leastTrustedRound(cell, Number(chosenName(at("client"))));
  trust();
}

const clientsOf = (cell) =>
  [...new Set(cell.rounds.flatMap((round) => round.clients))].sort((a, b) => a - b);

function multiple(round, i) {
  const weight = round.weight[i];
  const base = round.base_weight[i];
  return known(weight) && base > 0 ? weight / base : null;
}

function meanMultiple(cell, client) {
  const logs = [];
  for (const round of cell.rounds) {
    const times = multiple(round, round.clients.indexOf(client));
    if (times > 0) logs.push(Math.log2(times));
  }
  return logs.length ? 2 ** (sum(logs) / logs.length) : null;
}

function leastTrusted(cell, clients) {
  const means = clients.map((client) => meanMultiple(cell, client) ?? Infinity);
  return clients[means.indexOf(Math.min(...means))];
}

function leastTrustedRound(cell, client) {
  const all = cell.rounds.map(
    (round) => multiple(round, round.clients.indexOf(client)) ?? Infinity,
  );
  return all.indexOf(Math.min(...all));
}

function sentence(cell, round, i) {
  const words = DATA.words;
  const { causes } = round;
  const values = {};
  const shown = { client: clientName(cell, round, round.clients[i]) };
  for (const [name, digits] of Object.entries(words.decimals)) {
    values[name] = (round[name] ?? causes?.values[name])?.[i];
    shown[name] = text(values[name], digits);
  }
  for (const [cause, choices] of Object.entries(words.causes))
    shown[cause] = wording(choices, values[cause] ?? NaN).replace("{}", shown[cause]);
  shown.phrases = phrases(cell, round, i).join("; ") || words.nothing;
  let template = words.traced;
  if (round.overflowed.includes(round.clients[i])) template = words.overflowed;
  else if (round.excluded.includes(round.clients[i])) template = words.excluded;
  else if (!known(round.weight[i])) template = words.weightless;
  else if (!causes) template = words.unexplained;
  else if (causes.fell_back) template = words.fell_back;
  else if (causes.scored) template = words.explained;
  else if (!Object.keys(causes.factors).length) template = words.untraced;
  return filled(template, shown);
}

function trust() {
  const cell = chosenCell();
  if (!cell) return;
  const place = Number(at("round").value);
  const round = cell.rounds[place];
  const client = Number(chosenName(at("client")));
  const i = round.clients.indexOf(client);
  at("round-shown").textContent = `${round.round} of ${cell.rounds[cell.rounds.length - 1].round}`;
  at("round").setAttribute("aria-valuetext", `round ${round.round}`);
  const because = i < 0 ? `client ${client} took no part` : sentence(cell, round, i);
  at("because").textContent = `Round ${round.round}, ${because}.`.replaceAll("× ", "×\u00a0");
  weights(cell, place, client);
  effects(round, i, client);
  course(cell, place, client);
  causeMap(cell, place, client);
  memory(cell, place, client);
  roundTable(cell, round, i);
  graph(round, i);
  leftOut(cell);
}
