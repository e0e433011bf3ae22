// The chosen round: all its clients, their affinities, and who was left out.

const FEW_CLIENTS = 12; // all their affinities can be drawn
const MANY_CLIENTS = 30; // too many to name in the graph

function roundTable(cell, round, chosen) {
  const columns = roundColumns(round);
  const attacked = cell.attackers.length > 0;
  const header = [
    ...["client", "examples", "weight", "FedAvg's", "multiple"],
    ...columns.map((column) => column[1]),
    ...(attacked ? ["attacker"] : []),
  ];
  const rows = round.clients.map((client, i) => [
    String(client),
    String(round.examples[i]),
    text(round.weight[i], 3),
    text(round.base_weight[i], 3),
    times(round.weight[i], round.base_weight[i]),
    ...columns.map(([name, , digits]) => text(causeValue(round, name, i), digits)),
    ...(attacked ? [attacking(cell, round, client)] : []),
  ]);
  at("round-table").replaceChildren(table(header, rows, chosen));
  at("round-table-text").textContent = roundTableText(round);
}

function roundColumns({ reasons, field }) {
  if (reasons)
    return [
      ["reliability", "reliability", 3],
      ["cosine", "cosine", 2],
      ["distance", "distance", 2],
      ["norm_anomaly", "norm", 2],
      ["own_label", "own label", 3],
      ["expected_label", "expected label", 3],
    ];
  if (!field) return [];
  const seen = Object.keys(field.values)
    .filter((name) => !DATA.words.particulars.includes(name))
    .map((name) => [name, fieldTitle(name), 2]);
  return [["expected_label", "expected label", 3], ...seen];
}

function roundTableText({ reasons, field }) {
  if (reasons)
    return (
      "Weight, and FedAvg's; reliability ρ and its causes: cosine with the median update, " +
      "distance from it in medians over the clients, deviation of the norm in median absolute " +
      "deviations; expected label, alone and with neighbours."
    );
  if (field)
    return (
      "Weight, and FedAvg's; expected label; and what the field saw, as far as it looked: the " +
      "answer to the model's move (honest clients push back, below zero), the opposition met, " +
      "what of its vote against others counts, how much longer the update is than its examples " +
      "explain, what is remembered of the client, its share among copies, what is left of its " +
      "update after clipping."
    );
  return "Weight, and FedAvg's.";
}

function affinity(reasons, i, j) {
  return reasons.affinity[Math.min(i, j)][Math.abs(i - j) - 1] ?? 0;
}

function graph(round, chosen) {
  const reasons = round.reasons;
  const m = round.clients.length;
  if (!reasons?.affinity || m < 2) {
    clear("graph");
    at("neighbours").replaceChildren();
    at("graph-text").textContent = whyNoGraph(reasons, m);
    return;
  }
  const near = round.clients.map((_, i) => nearest(reasons, i, m));
  const edges = [];
  for (let i = 0; i < m; i++)
    for (let j = i + 1; j < m; j++)
      if (
        m <= FEW_CLIENTS
          ? near[i].includes(j)
          : near[i].slice(0, 3).includes(j) || near[j].slice(0, 3).includes(i)
      )
        edges.push([i, j, affinity(reasons, i, j)]);
  const strongest = largest(
    edges.map(([, , value]) => value),
    1e-12,
  );
  const hidden = { visible: false, range: [-1.35, 1.35] };
  const layout = {
    height: 420,
    showlegend: false,
    hovermode: "closest",
    xaxis: hidden,
    yaxis: { ...hidden, scaleanchor: "x" },
  };
  const summary =
    "Each client is a circle as large as its weight; the thicker a line, the larger the affinity " +
    `(at most ${strongest.toPrecision(2)} in this round)` +
    (m > FEW_CLIENTS ? "; only each client's three nearest are drawn." : ".");
  draw("graph", [...lines(edges, strongest, m), circles(round, chosen, near)], layout, summary);
  const shown = at("graph");
  shown.removeAllListeners?.("plotly_click");
  shown.on("plotly_click", ({ points: [point] }) => point.text && choose(point.text, -1));
  at("neighbours").replaceChildren(neighbours(round, chosen, near));
}

function whyNoGraph(reasons, m) {
  if (!reasons) return "This rule knows no affinities.";
  if (m < 2) return "A single client has no neighbours.";
  return "The affinities are not recorded for a round of so many clients.";
}

function nearest(reasons, i, m) {
  const others = [...Array(m).keys()].filter((j) => j !== i && affinity(reasons, i, j) > 0);
  return others.sort((a, b) => affinity(reasons, i, b) - affinity(reasons, i, a));
}

const onCircle = (i, m) => [Math.sin((2 * Math.PI * i) / m), Math.cos((2 * Math.PI * i) / m)];

// The edges in a few strengths, for a line has one width.
function lines(edges, strongest, m) {
  const steps = 6;
  const strength = ([, , value]) => Math.min(steps - 1, Math.floor((value / strongest) * steps));
  return [...Array(steps).keys()].map((step) => {
    const group = edges.filter((edge) => strength(edge) === step);
    const share = (step + 1) / steps;
    const along = (axis) =>
      group.flatMap(([i, j]) => [onCircle(i, m)[axis], onCircle(j, m)[axis], null]);
    return {
      type: "scatter",
      mode: "lines",
      hoverinfo: "skip",
      opacity: 0.15 + 0.75 * share,
      line: { width: 0.5 + 6 * share * share, color: colour("soft") },
      x: along(0),
      y: along(1),
    };
  });
}

function circles(round, chosen, near) {
  const m = round.clients.length;
  const places = round.clients.map((_, i) => onCircle(i, m));
  const logs = round.clients.map((_, i) => {
    const share = multiple(round, i);
    return share > 0 ? Math.log2(share) : -1;
  });
  const reach = largest(logs.map(Math.abs), 1);
  const shares = round.weight.map((weight) => weight ?? 0);
  const heaviest = largest(shares, 1e-12);
  const side = (x) => (Math.abs(x) < 0.3 ? "center" : x > 0 ? "right" : "left");
  const told = (i) => {
    const closest = near[i].slice(0, 3).map((j) => `client ${round.clients[j]}`);
    return [text(round.weight[i], 3), closest.join(", ")];
  };
  return {
    type: "scatter",
    mode: m <= MANY_CLIENTS ? "markers+text" : "markers",
    x: places.map(([x]) => x),
    y: places.map(([, y]) => y),
    text: round.clients.map(String),
    textposition: places.map(([x, y]) => `${y >= 0 ? "top" : "bottom"} ${side(x)}`),
    customdata: round.clients.map((_, i) => told(i)),
    hovertemplate:
      "client %{text}, weight %{customdata[0]}<br>nearest: %{customdata[1]}<extra></extra>",
    cliponaxis: false,
    marker: {
      opacity: 1,
      size: shares.map((share) => 9 + 26 * Math.sqrt(share / heaviest)),
      color: logs,
      cmin: -reach,
      cmax: reach,
      colorscale: diverging(),
      line: {
        color: round.clients.map((_, i) => colour(i === chosen ? "accent" : "ink")),
        width: round.clients.map((_, i) => (i === chosen ? 4 : 1)),
      },
    },
  };
}

function neighbours(round, chosen, near) {
  const named = (i, j) =>
    j === undefined ? "–" : `${round.clients[j]} (${affinity(round.reasons, i, j).toPrecision(2)})`;
  const rows = round.clients.map((client, i) => [
    String(client),
    ...[0, 1, 2].map((place) => named(i, near[i][place])),
  ]);
  return table(["client", "nearest", "second", "third"], rows, chosen);
}

function leftOut(cell) {
  const lines = [];
  for (const round of cell.rounds) {
    for (const client of round.excluded)
      lines.push(
        `Round ${round.round}: client ${client}, whose update is not finite (NaN or infinity).`,
      );
    for (const node of round.left_out) lines.push(`Round ${round.round}: ${node}.`);
    if (round.kept_model)
      lines.push(`Round ${round.round}: no update was usable; the model stayed as it was.`);
    if ((round.reasons ?? round.field)?.fell_back)
      lines.push(filled(DATA.words.round_fell_back, round));
  }
  at("excluded").replaceChildren(
    lines.length
      ? element(
          "ul",
          lines.map((line) => element("li", line)),
        )
      : element("p", "No client was left out in any round."),
  );
}
