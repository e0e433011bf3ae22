// One cause of every client in every round, and what is remembered of the clients.

const LABELS = ["trust", "own_trust", "remembered"]; // their largest depends on the rule
const SHARES = [...LABELS, "reliability", "vote", "copies", "clip", "counted"];
const MISSING = ["unresponsive", "inconsistent"];
const AGAINST = ["distance", "norm_anomaly", "opposition", "opposed", "norm", "distant", "minority", ...MISSING];
const HIGH_IS_AGAINST = ["curvature_response", "goal_distance"]; // of those with a sign
const MANY_LINES = 60; // too many to draw every client's memory

function causeNames(cell) {
  const seen = cell.rounds.flatMap((round) => Object.keys(round.causes?.values ?? {}));
  return seen.length ? [...new Set(["trust", ...seen])] : [];
}

const causeTitle = (cause) => DATA.titles[cause].name;

const causeValue = (round, cause, i) => round.causes?.values[cause]?.[i] ?? null;

// Orange is what speaks against a client, whatever its sign.
function causeScale(cause, values) {
  const reach = largest(values.map(Math.abs), 1e-12);
  if (cause === "cosine" || DATA.signed.includes(cause)) {
    const [from, to] = HIGH_IS_AGAINST.includes(cause) ? ["high", "low"] : ["low", "high"];
    return { zmin: -reach, zmax: reach, colorscale: shades(from, "middle", to) };
  }
  if (SHARES.includes(cause)) {
    const zmax = LABELS.includes(cause) ? reach : 1;
    return { zmin: 0, zmax, colorscale: shades("low", "middle") };
  }
  const against = AGAINST.includes(cause) || cause.startsWith("reported ");
  const zmax = Math.min(reach, 10 * Math.max(quantile(values, 0.9), 0.1)); // one may be 10¹² off
  return { zmin: 0, zmax, colorscale: against ? shades("middle", "low") : shades("few", "many") };
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
}

function causeMap(cell, place, client) {
  const names = causeNames(cell);
  at("cause-figure").hidden = !names.length;
  if (!names.length) return;
  const cause = names[Number(at("cause").value)];
  const title = causeTitle(cause);
  const map = weightMap(cell, place, client);
  const of = (value) =>
    map.clients.map((each) =>
      overRounds(cell, each, (round, i) => (round.excluded.includes(each) ? null : value(round, i))),
    );
  const grid = of((round, i) => causeValue(round, cause, i));
  const values = grid.flat().filter(known);
  const trace = {
    ...map.trace,
    ...causeScale(cause, values),
    z: grid,
    customdata: of((round, i) => causeHover(round, cause, i)),
    hovertemplate: "client %{y}, round %{x}<br>%{customdata}<extra></extra>",
    colorbar: bar(title),
  };
  const summary = causeSummary(cell, cause, values);
  draw("cause-map", [trace, map.excluded, map.attacks], map.layout, summary);
  clickable("cause-map", map);
}

function causeHover(round, cause, i) {
  const value = `${plain(causeTitle(cause))} ${text(causeValue(round, cause, i), 3)}`;
  const middle = round.causes?.medians[cause];
  const factor = round.causes?.factors[cause]?.[i];
  return [
    value,
    ...(known(middle) ? [`median ${text(middle, 3)}`] : []),
    ...(known(factor) ? [`× ${factorText(factor)}`] : []),
  ].join(", ");
}

function causeSummary(cell, cause, values) {
  if (!values.length) return `${causeTitle(cause)} is not known of any client in any round.`;
  const range = `between ${text(smallest(values), 2)} and ${text(largest(values, -Infinity), 2)}`;
  const lowered = new Map(); // by client, in how many rounds
  for (const round of cell.rounds)
    for (const [i, client] of round.clients.entries())
      if (round.causes?.named[i].includes(cause)) lowered.set(client, (lowered.get(client) ?? 0) + 1);
  const counts = clientsOf(cell)
    .filter((client) => lowered.has(client))
    .map((client) => `${client} (${lowered.get(client)})`);
  const named = counts.length
    ? ` Named for clients (in how many rounds): ${counts.slice(0, 20).join(", ")}.`
    : "";
  const { name, about } = DATA.titles[cause];
  return `${capital(name)}: ${about ? `${about}; ` : ""}${range}.${named}`;
}

function memory(cell, place, client) {
  const remembers = cell.rounds.some((round) => round.causes?.values.remembered);
  at("memory-figure").hidden = !remembers;
  if (!remembers) return;
  const clients = clientsOf(cell);
  const rounds = cell.rounds.map((round) => round.round);
  const course = (each) => overRounds(cell, each, (round, i) => causeValue(round, "remembered", i));
  const line = (y, name, style) => ({
    x: rounds,
    y,
    name,
    mode: y.filter(known).length < 2 ? "markers" : "lines",
    connectgaps: true,
    hovertemplate: `${name}: %{y:.2f}<extra></extra>`,
    ...style,
  });
  const [blue] = palette();
  const few = clients.length <= MANY_LINES;
  const others = clients.filter((each) => each !== client && !cell.attackers.includes(each));
  const attackers = cell.attackers.filter((each) => each !== client && clients.includes(each));
  const group = (all, name, style) =>
    all.map((each, n) => ({
      ...line(course(each), `client ${plain(each)}`, style),
      name: n ? `client ${plain(each)}` : name,
      legendgroup: name,
      showlegend: n === 0,
    }));
  const soft = { line: { color: colour("soft"), width: 1 }, opacity: 0.6 };
  const middle = cell.rounds.map((round) => round.causes?.medians.remembered ?? null);
  const traces = [
    ...(few
      ? group(others, cell.attackers.length ? "honest clients" : "the others", soft)
      : [line(middle, "median over the clients", soft)]),
    ...group(attackers, "attackers", { line: { color: colour("low"), width: 1.5, dash: "dash" } }),
    line(course(client), `client ${plain(client)}`, { line: { color: blue, width: 3 } }),
  ];
  const layout = {
    height: 320,
    hovermode: "closest",
    legend: LEGEND,
    xaxis: { title: { text: "round" } },
    yaxis: { title: { text: "remembered trust" }, rangemode: "tozero" },
    shapes: [roundMark(rounds[place])],
  };
  const last = cell.rounds.at(-1);
  const least = last.clients
    .map((each, i) => [each, causeValue(last, "remembered", i)])
    .filter(([, value]) => known(value))
    .sort((a, b) => a[1] - b[1])
    .slice(0, 3)
    .map(([each, value]) => `client ${each} (${text(value, 2)})`);
  const summary =
    "The trust in each client that a round begins with, from earlier ones; a new client has none." +
    (least.length ? ` Least in round ${last.round}: ${least.join(", ")}.` : "");
  draw("memory", traces, layout, summary);
}

const roundMark = (round) => ({
  type: "line",
  xref: "x",
  yref: "paper",
  x0: round,
  x1: round,
  y0: 0,
  y1: 1,
  line: { color: colour("ink"), width: 1, dash: "dot" },
});
