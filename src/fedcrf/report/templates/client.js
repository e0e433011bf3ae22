// The chosen client: what makes its reliability or its weight, and its course over the rounds.

// What each cause adds to the score, or makes of the weight.
function effects(round, i, client) {
  const seen = i >= 0 && !round.excluded.includes(client) ? round.causes : null;
  if (seen?.scored) terms(seen, i, client);
  else if (Object.keys(seen?.factors ?? {}).length) factors(seen, i, client);
  else clear("causes", whyNoCauses(round, i, client));
}

function whyNoCauses(round, i, client) {
  if (client === undefined) return NOBODY;
  if (i < 0) return `Client ${client} took no part in round ${round.round}.`;
  if (!round.causes) return "No reasons are recorded for this round: the CRF's rules alone give some.";
  return round.excluded.includes(client)
    ? "Its update is not finite, or too long to be squared: there is nothing to compare."
    : "What each cause made of the weight is not known.";
}

const SMALLEST_FACTOR = 0.001;

function factorText(value) {
  if (!known(value)) return "–";
  if (value < SMALLEST_FACTOR) return `under ${SMALLEST_FACTOR}`;
  return text(value, value >= 0.1 ? 2 : 3);
}

const columnName = (cause) => DATA.titles[cause].column;

// What some causes are, each by what the reader sees it called; nothing of what is plain.
function meanings(causes) {
  const titles = causes.map((name) => DATA.titles[name]).filter(({ about }) => about);
  return titles.map(({ name, about }) => element("div", [element("dt", name), element("dd", about)]));
}

// Draw a client's bars, and diamonds of the medians on them. `placed` is a value's place on the
// axis, `written` its text.
function drawBars(client, bars, { placed, written, height, xaxis, summary }) {
  const y = bars.map(({ label }) => label);
  const mine = {
    type: "bar",
    orientation: "h",
    y,
    x: bars.map(({ mine }) => placed(mine)),
    name: `client ${plain(client)}`,
    marker: { color: palette()[0] },
    hovertemplate: "%{y}<extra></extra>",
  };
  const middle = {
    type: "scatter",
    mode: "markers",
    y,
    x: bars.map(({ middle }) => placed(middle)),
    name: "median over the clients",
    marker: { symbol: "diamond", size: 11, color: colour("ink") },
    customdata: bars.map(({ middle }) => written(middle)),
    hovertemplate: "median %{customdata}<extra></extra>",
  };
  const layout = {
    height,
    legend: LEGEND,
    xaxis: { zeroline: true, zerolinewidth: 2, ...xaxis },
    yaxis: { autorange: "reversed", showgrid: false },
  };
  draw("causes", [mine, middle], layout, summary);
}

// Terms add up: as bars, what each cause adds to the score of the client's reliability.
function terms({ values, medians }, i, client) {
  const bars = Object.entries(DATA.terms).map(([name, factor]) => {
    const value = values[name][i];
    const mine = factor * value;
    const product = `${text(factor, 1)} × ${text(value, 2)} = ${text(mine, 2)}`;
    return { mine, middle: factor * medians[name], label: `${DATA.titles[name].name}<br>${product}` };
  });
  const clip = (value) => Math.max(-12, value); // a huge deviation must not hide the others
  const score = sum(bars.map(({ mine }) => mine));
  const added = bars.map(({ mine }) => text(mine, 2)).join(" + ");
  const summary =
    `Score ${added.replaceAll("+ −", "− ")} = ${text(score, 2)}; ` +
    `its logistic function is the reliability ρ = ${text(values.reliability[i], 3)}.`;
  const xaxis = { title: { text: "adds to the score" } };
  const written = (value) => text(value, 2);
  drawBars(client, bars, { placed: clip, written, height: 300, xaxis, summary });
}

// Factors multiply: as bars on a logarithmic scale, what each cause made of the client's weight.
function factors(causes, i, client) {
  const all = Object.keys(causes.factors);
  const tells = (factor) => known(factor) && factorText(factor) !== "1.00";
  const names = all.filter(
    (name) => tells(causes.factors[name][i]) || tells(causes.factor_medians[name]),
  );
  if (!names.length) {
    clear("causes", "No cause changed its weight, or the median client's, by one percent.");
    return;
  }
  const log = (value) => Math.log2(Math.max(value, SMALLEST_FACTOR));
  const bars = names.map((name) => ({
    mine: causes.factors[name][i],
    middle: causes.factor_medians[name],
    label: `${plain(DATA.titles[name].name)}<br>× ${factorText(causes.factors[name][i])}`,
  }));
  const drawn = bars.flatMap(({ mine, middle }) => [log(mine), log(middle)]);
  const least = Math.min(-1, ...drawn);
  const most = Math.max(0.15, ...drawn);
  const below = narrow() ? [0.3, 0.03, 0.001] : [0.5, 0.25, 0.1, 0.03, 0.01, 0.001];
  const above = narrow() ? [30, 1000] : [2, 10, 100, 1000];
  const ticks = [1, ...below, ...above].filter(
    (tick) => log(tick) >= least * 1.01 && log(tick) <= most * 1.01,
  );
  const xaxis = {
    title: { text: "factor on its weight" },
    tickvals: ticks.map(log),
    ticktext: ticks.map((tick) => `× ${tick}`),
    tickangle: 0,
    range: [least - 0.08 * (most - least), most + 0.08 * (most - least)],
  };
  const product = all
    .filter((name) => name !== "clip")
    .reduce((all, name) => all * causes.factors[name][i], 1);
  const summary =
    `All factors but the clipping multiply to × ${factorText(product)} of the weight that its ` +
    "examples alone would earn" +
    (known(causes.values.clip?.[i])
      ? `; its update counts ${text(causes.values.clip[i], 2)} of its length.`
      : ".") +
    (names.length < all.length ? " Causes that change nothing (× 1.00) are not drawn." : "");
  const written = (value) => `× ${factorText(value)}`;
  const height = 120 + 46 * names.length;
  drawBars(client, bars, { placed: log, written, height, xaxis, summary });
}

function course(cell, place, client) {
  const rounds = cell.rounds.map((round) => round.round);
  const line = (name, value, color, dash, yaxis = "y") => {
    const y = overRounds(cell, client, value);
    return {
      x: rounds,
      y,
      name,
      mode: lineMode(y),
      marker: { color, size: 5 },
      line: { color, dash, width: 2 },
      yaxis,
      hovertemplate: `${name} %{y:.3f}<extra></extra>`,
    };
  };
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
    : client === undefined
      ? NOBODY
      : `Client ${client} has no weight of its own.`;
  draw("course", traces, layout, summary);
}
