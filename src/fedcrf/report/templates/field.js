// The causes of a client's weight as bars.

const SMALLEST_FACTOR = 0.001;

function factorText(value) {
  if (!known(value)) return "–";
  if (value < SMALLEST_FACTOR) return `under ${SMALLEST_FACTOR}`;
  return text(value, value >= 0.1 ? 2 : 3);
}

const columnName = (cause) => DATA.titles[cause].column;

// A client's bars, and the median client's diamonds on them.
function besideMedian(client, y, x, medians, shown) {
  const mine = {
    type: "bar",
    orientation: "h",
    y,
    x,
    name: `client ${plain(client)}`,
    marker: { color: palette()[0] },
    hovertemplate: "%{y}<extra></extra>",
  };
  const middle = {
    type: "scatter",
    mode: "markers",
    y,
    x: medians,
    name: "median over the clients",
    marker: { symbol: "diamond", size: 11, color: colour("ink") },
    customdata: shown,
    hovertemplate: "median %{customdata}<extra></extra>",
  };
  return [mine, middle];
}

// Terms add up: as bars, what each cause adds to the score of the client's reliability.
function terms({ values, medians }, i, client) {
  const bars = Object.entries(DATA.terms).map(([name, factor]) => {
    const value = values[name][i];
    const adds = factor * value;
    const middle = factor * medians[name];
    const product = `${text(factor, 1)} × ${text(value, 2)} = ${text(adds, 2)}`;
    return { adds, middle, label: `${DATA.titles[name].name}<br>${product}` };
  });
  const clip = (value) => Math.max(-12, value); // a huge deviation must not hide the others
  const y = bars.map((bar) => bar.label);
  const [mine, middle] = besideMedian(
    client,
    y,
    bars.map((bar) => clip(bar.adds)),
    bars.map((bar) => clip(bar.middle)),
    bars.map((bar) => text(bar.middle, 2)),
  );
  const layout = {
    height: 300,
    legend: LEGEND,
    xaxis: { title: { text: "adds to the score" }, zeroline: true, zerolinewidth: 2 },
    yaxis: { autorange: "reversed", showgrid: false },
  };
  const score = sum(bars.map((bar) => bar.adds));
  const added = bars.map((bar) => text(bar.adds, 2)).join(" + ");
  const summary =
    `Score ${added.replaceAll("+ −", "− ")} = ${text(score, 2)}; ` +
    `its logistic function is the reliability ρ = ${text(values.reliability[i], 3)}.`;
  draw("causes", [mine, middle], layout, summary);
}

// Factors multiply: as bars on a logarithmic scale, what each cause made of the client's weight.
function factors(round, i, client) {
  const { causes } = round;
  const names = Object.keys(causes.factors);
  const log = (value) => Math.log2(Math.max(value, SMALLEST_FACTOR));
  const usable = round.clients.map((each) => !round.excluded.includes(each));
  const bars = names.map((name) => ({
    mine: causes.factors[name][i],
    middle: median(causes.factors[name].filter((value, j) => known(value) && usable[j])),
    label: `${plain(DATA.titles[name].name)}<br>× ${factorText(causes.factors[name][i])}`,
  }));
  const y = bars.map((bar) => bar.label);
  const [mine, middle] = besideMedian(
    client,
    y,
    bars.map((bar) => log(bar.mine)),
    bars.map((bar) => log(bar.middle)),
    bars.map((bar) => `× ${factorText(bar.middle)}`),
  );
  const drawn = [...mine.x, ...middle.x];
  const least = Math.min(-1, ...drawn);
  const most = Math.max(0.15, ...drawn);
  const below = narrow() ? [0.3, 0.03, 0.001] : [0.5, 0.25, 0.1, 0.03, 0.01, 0.001];
  const above = narrow() ? [30, 1000] : [2, 10, 100, 1000];
  const ticks = [1, ...below, ...above].filter(
    (tick) => log(tick) >= least * 1.01 && log(tick) <= most * 1.01,
  );
  const layout = {
    height: 120 + 46 * names.length,
    legend: LEGEND,
    xaxis: {
      title: { text: "makes of the weight" },
      tickvals: ticks.map(log),
      ticktext: ticks.map((tick) => `× ${tick}`),
      tickangle: 0,
      range: [least - 0.08 * (most - least), most + 0.08 * (most - least)],
      zeroline: true,
      zerolinewidth: 2,
    },
    yaxis: { autorange: "reversed", showgrid: false },
  };
  const product = names
    .filter((name) => name !== "clip")
    .reduce((all, name) => all * causes.factors[name][i], 1);
  const summary =
    `All but the clipping together: × ${factorText(product)} of what its examples earn where ` +
    "nothing else is known" +
    (known(causes.values.clip?.[i])
      ? `; its update counts ${text(causes.values.clip[i], 2)} of its length.`
      : ".");
  draw("causes", [mine, middle], layout, summary);
}
