// The heat map of every client's weight in every round.

function weights(cell, place, client) {
  const map = weightMap(cell, place, client);
  const beside = document.querySelector("input[name=scale]:checked").value === "beside";
  (beside ? drawSideBySide : drawMultiples)(map, weightSummary(cell, map.clients));
  clickable("weights", map);
  at("attackers").hidden = !cell.attackers.length;
  at("attackers").textContent =
    `${narrow() ? "▲ " : ""}Attackers of the run: ${cell.attackers.join(", ")}. ` +
    (alwaysAttack(cell)
      ? "They attack in every round."
      : "A triangle marks each round in which one attacks.");
}

const alwaysAttack = ({ rounds, attackers }) =>
  rounds.every((round) =>
    attackers.every((each) => round.attackers.includes(each) || !round.clients.includes(each)),
  );

function onClick(id, answer) {
  const shown = at(id);
  shown.removeAllListeners?.("plotly_click");
  shown.on("plotly_click", ({ points: [point] }) => answer(point));
}

const clickable = (id, map) =>
  onClick(id, ({ x, y }) =>
    choose(String(map.clients[map.clients.map(plain).indexOf(y)]), map.rounds.indexOf(x)),
  );

function weightMap(cell, place, client) {
  const clients = clientsOf(cell);
  const rounds = cell.rounds.map((round) => round.round);
  const grid = (name) => clients.map((each) => overRounds(cell, each, (round, i) => round[name][i]));
  const ours = grid("weight");
  const base = grid("base_weight");
  const map = { method: cell.method, clients, rounds, place, client, ours, base };
  map.trace = {
    type: "heatmap",
    x: rounds,
    y: clients.map(plain),
    hoverongaps: false,
    customdata: both(map, (w, b) => [text(w, 3), text(b, 3), times(w, b)]),
    hovertemplate:
      "client %{y}, round %{x}<br>weight %{customdata[0]}, " +
      "FedAvg's %{customdata[1]} (× %{customdata[2]})<extra></extra>",
  };
  const yaxis = {
    ...CLIENT_AXIS,
    nticks: 20,
    categoryorder: "array",
    categoryarray: clients.map(plain),
    ...attackerTicks(cell, clients),
  };
  map.layout = {
    height: rowsHeight(clients.length, 22),
    xaxis: { title: { text: "round" }, showgrid: false },
    yaxis,
    shapes: marks(map, "x"),
  };
  map.excluded = {
    ...symbols(cell, "excluded", "x", 7),
    hovertemplate: "client %{y}, round %{x}: excluded<extra></extra>",
  };
  const triangles = symbols(cell, "attackers", "triangle-up", 6);
  map.attacks = { ...triangles, hoverinfo: "skip", visible: !alwaysAttack(cell) };
  return map;
}

const marked = (name) => (narrow() ? `▲ ${name}` : `${name} (attacks)`);

// The names on the axis, attackers marked; of many clients some, and all attackers.
function attackerTicks(cell, clients) {
  if (!cell.attackers.length) return {};
  const step = Math.ceil(clients.length / MANY_CLIENTS);
  const named = clients.filter((each, n) => n % step === 0 || cell.attackers.includes(each));
  return {
    tickvals: named.map(plain),
    ticktext: named.map((each) => (cell.attackers.includes(each) ? marked(plain(each)) : plain(each))),
  };
}

const both = (map, value) =>
  map.ours.map((row, c) => row.map((weight, r) => value(weight, map.base[c][r])));

const times = (weight, base) => (known(weight) && base > 0 ? (weight / base).toFixed(2) : "–");

function drawMultiples(map, summary) {
  const logs = both(map, (w, b) => (known(w) && b > 0 ? Math.log2(w / b) : null));
  const finite = logs.flat().filter((value) => known(value) && Number.isFinite(value));
  const reach = Math.min(5, largest(finite.map(Math.abs), 1));
  const ticks = [-1, -0.5, 0, 0.5, 1].map((share) => share * reach);
  const trace = {
    ...map.trace,
    z: logs.map((row) => row.map((value) => (value === -Infinity ? -reach : value))),
    zmin: -reach,
    zmax: reach,
    colorscale: shades("low", "middle", "high"),
    colorbar: {
      ...bar("× FedAvg's"),
      tickvals: ticks,
      ticktext: ticks.map((tick) => `×${Number((2 ** tick).toPrecision(2))}`),
    },
  };
  draw("weights", [trace, map.excluded, map.attacks], map.layout, summary);
}

function drawSideBySide(map, summary) {
  const stacked = narrow();
  const top = largest([map.ours, map.base].flat(2).filter(known), 0);
  const trace = { ...map.trace, zmin: 0, zmax: top, colorscale: "Cividis" };
  const ours = { ...trace, z: map.ours, colorbar: bar("weight") };
  const base = { ...trace, z: map.base, xaxis: "x2", yaxis: "y2", showscale: false };
  const name = (x, title) => ({
    text: title,
    xref: `${x} domain`,
    yref: `${x.replace("x", "y")} domain`,
    x: 0,
    y: 1,
    xanchor: "left",
    yanchor: "bottom",
    showarrow: false,
  });
  const layout = {
    ...map.layout,
    height: (stacked ? 2 : 1) * map.layout.height,
    margin: { l: 10, r: 10, t: 30, b: 10 },
    grid: { rows: stacked ? 2 : 1, columns: stacked ? 1 : 2, pattern: "independent" },
    xaxis2: map.layout.xaxis,
    yaxis2: { ...map.layout.yaxis, title: { text: stacked ? "client" : "" } },
    annotations: [name("x", plain(map.method)), name("x2", "FedAvg's weights")],
    shapes: [...map.layout.shapes, ...marks(map, "x2")],
  };
  draw("weights", [ours, base, map.excluded, map.attacks], layout, summary);
}

const bar = (title) => ({
  thickness: 12,
  outlinewidth: 0,
  title: { text: narrow() ? "" : plain(title) },
});

// The chosen round as a dotted column, the chosen client in it as a frame.
function marks(map, axis) {
  const row = map.clients.indexOf(map.client);
  const column = {
    type: "rect",
    xref: axis,
    yref: axis.replace("x", "y"),
    x0: map.rounds[map.place] - 0.5,
    x1: map.rounds[map.place] + 0.5,
    y0: -0.5,
    y1: map.clients.length - 0.5,
    line: { color: colour("ink"), width: 0.75, dash: "dot" },
  };
  const frame = { y0: row - 0.5, y1: row + 0.5, line: { color: colour("ink"), width: 1.5 } };
  return [column, { ...column, ...frame }];
}

// A symbol on each client that a round names so.
function symbols(cell, name, symbol, size) {
  const all = cell.rounds.flatMap((round) => round[name].map((client) => [round.round, client]));
  return {
    type: "scatter",
    mode: "markers",
    x: all.map(([round]) => round),
    y: all.map(([, client]) => plain(client)),
    marker: { symbol, color: colour("ink"), size },
    showlegend: false,
  };
}

function weightSummary(cell, clients) {
  const means = clients
    .map((client) => [client, meanMultiple(cell, client)])
    .filter(([, mean]) => known(mean))
    .sort((a, b) => a[1] - b[1]);
  if (!clients.length) return NOBODY;
  if (!means.length) return "This rule gives no client a weight of its own.";
  const [least, most] = [means[0], means.at(-1)];
  if (means.length < 2)
    return `Over all rounds client ${least[0]} got ${least[1].toFixed(2)} times its FedAvg weight.`;
  return (
    `Over all rounds client ${least[0]} got the least, ${least[1].toFixed(2)} times its FedAvg ` +
    `weight, and client ${most[0]} the most, ${most[1].toFixed(2)} times. ` +
    "Choose a client and a round by clicking, or above."
  );
}

function choose(client, place) {
  const option = [...at("client").options].find((each) => each.textContent === client);
  if (option) at("client").value = option.value;
  if (place >= 0) at("round").value = place;
  trust();
}
