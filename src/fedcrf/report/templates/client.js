// The chosen client: what makes its reliability or its weight, and its course over the rounds.

// What each cause adds to the score, or makes of the weight.
function effects(round, i, client) {
  const seen = i >= 0 && !round.excluded.includes(client) ? round.causes : null;
  if (seen?.scored) terms(seen, i, client);
  else if (Object.keys(seen?.factors ?? {}).length) factors(round, i, client);
  else clear("causes", whyNoCauses(round, i, client));
}

function whyNoCauses(round, i, client) {
  if (i < 0) return `Client ${client} took no part in round ${round.round}.`;
  if (!round.causes) return "This rule keeps no reasons: only the CRF infers reliabilities.";
  return round.excluded.includes(client)
    ? "Its update is not finite: there is nothing to compare."
    : "What each cause made of the weight is not known.";
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

function course(cell, place, client) {
  const rounds = cell.rounds.map((round) => round.round);
  const absent = cell.rounds.some((round) => !round.clients.includes(client));
  const line = (name, value, color, dash, yaxis = "y") => ({
    x: rounds,
    y: overRounds(cell, client, value),
    name,
    mode: absent ? "lines+markers" : "lines", // a round between two others is no line
    marker: { color, size: 5 },
    line: { color, dash, width: 2 },
    yaxis,
    hovertemplate: `${name} %{y:.3f}<extra></extra>`,
  });
  const [blue, orange, green] = palette();
  const traces = [
    line("weight", (round, i) => round.weight[i], blue, "solid"),
    line("FedAvg's weight", (round, i) => round.base_weight[i], colour("soft"), "dash"),
  ];
  const reasoned = cell.rounds.some((round) => round.causes);
  const of = (name) => (round, i) => causeValue(round, name, i);
  for (const [name, color, dash] of [
    ["reliability", orange, "dot"],
    ["remembered", orange, "dot"],
    ["trust", green, "dashdot"],
  ])
    if (cell.rounds.some((round) => round.causes?.values[name]))
      traces.push(line(columnName(name), of(name), color, dash, "y2"));
  const layout = {
    height: 300,
    hovermode: "x",
    legend: LEGEND,
    xaxis: { title: { text: "round" }, anchor: reasoned ? "y2" : "y" },
    yaxis: {
      title: { text: "weight" },
      rangemode: "tozero",
      domain: reasoned ? [0.55, 1] : [0, 1],
    },
    shapes: [roundMark(rounds[place])],
  };
  if (reasoned)
    layout.yaxis2 = {
      title: { text: traces.some(({ name }) => name === "reliability") ? "ρ, trust" : "trust" },
      rangemode: "tozero",
      domain: [0, 0.42],
    };
  const got = traces[0].y.filter(known);
  const summary = got.length
    ? `Client ${client}'s weight lies between ${text(Math.min(...got), 3)} and ${text(Math.max(...got), 3)}.`
    : `Client ${client} has no weight of its own.`;
  draw("course", traces, layout, summary);
}
