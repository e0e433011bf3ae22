// The chosen round: all its clients, their affinities, and who was excluded.

const FEW_CLIENTS = 12; // all their affinities can be drawn
const MANY_CLIENTS = 30; // too many to name in the graph

function roundTable(cell, round, chosen) {
  const { columns } = round;
  const rows = round.clients.map((_, i) => columns.map((name) => written(cell, round, name, i)));
  at("round-table").replaceChildren(table(columns.map(columnName), rows, chosen));
  at("meanings").replaceChildren(...meanings(columns));
}

function written(cell, round, name, i) {
  if (name === "client") return String(round.clients[i]);
  if (name === "node") return round.nodes[i];
  if (name === "num_examples") return String(round.examples[i]);
  if (name === "multiple") return times(round.weight[i], round.base_weight[i]);
  if (name === "attacker") return attacking(cell, round, round.clients[i]);
  return text((round[name] ?? [])[i] ?? causeValue(round, name, i), DATA.titles[name].digits);
}

function attacking(cell, round, client) {
  if (round.attackers.includes(client)) return "attacks";
  return cell.attackers.includes(client) ? "not now" : "";
}

function affinity({ affinities }, i, j) {
  return affinities[Math.min(i, j)][Math.abs(i - j) - 1] ?? 0;
}

function graph(round, chosen) {
  const { causes } = round;
  const m = round.clients.length;
  if (!causes?.affinities || m < 2) {
    const of = causes ? "a round of so many clients" : "this round";
    const alone = m ? "A single client has no neighbours." : "No client took part in this round.";
    clear("graph", m < 2 ? alone : `No affinities are recorded for ${of}.`);
    at("neighbours").replaceChildren();
    return;
  }
  const near = round.clients.map((_, i) => nearest(causes, i, m));
  const drawn = near.map((others) => (m <= FEW_CLIENTS ? others : others.slice(0, 3)));
  const edges = [];
  for (let i = 0; i < m; i++)
    for (let j = i + 1; j < m; j++)
      if (drawn[i].includes(j) || drawn[j].includes(i)) edges.push([i, j, affinity(causes, i, j)]);
  const values = edges.map(([, , value]) => value);
  const strongest = largest(values, 1e-12);
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
  const clicked = ({ text: name, pointNumber }) =>
    name && choose(String(round.clients[pointNumber]), -1);
  onClick("graph", clicked);
  at("neighbours").replaceChildren(neighbours(round, chosen, near));
}

function nearest(causes, i, m) {
  const others = [...Array(m).keys()].filter((j) => j !== i && affinity(causes, i, j) > 0);
  return others.sort((a, b) => affinity(causes, i, b) - affinity(causes, i, a));
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
  const hover = (i) => {
    const closest = near[i].slice(0, 3).map((j) => `client ${plain(round.clients[j])}`);
    return [text(round.weight[i], 3), closest.join(", ")];
  };
  return {
    type: "scatter",
    mode: m <= MANY_CLIENTS ? "markers+text" : "markers",
    x: places.map(([x]) => x),
    y: places.map(([, y]) => y),
    text: round.clients.map(plain),
    textposition: places.map(([x, y]) => `${y >= 0 ? "top" : "bottom"} ${side(x)}`),
    customdata: round.clients.map((_, i) => hover(i)),
    hovertemplate:
      "client %{text}, weight %{customdata[0]}<br>nearest: %{customdata[1]}<extra></extra>",
    cliponaxis: false,
    marker: {
      opacity: 1,
      size: shares.map((share) => 9 + 26 * Math.sqrt(share / heaviest)),
      color: logs,
      cmin: -reach,
      cmax: reach,
      colorscale: shades("low", "middle", "high"),
      line: {
        color: round.clients.map((_, i) => colour(i === chosen ? "accent" : "ink")),
        width: round.clients.map((_, i) => (i === chosen ? 4 : 1)),
      },
    },
  };
}

function neighbours(round, chosen, near) {
  const named = (i, j) =>
    j === undefined ? "–" : `${round.clients[j]} (${affinity(round.causes, i, j).toPrecision(2)})`;
  const rows = round.clients.map((client, i) => [
    String(client),
    ...[0, 1, 2].map((place) => named(i, near[i][place])),
  ]);
  return table(["client", "nearest", "second", "third"], rows, chosen);
}

function exclusions(cell) {
  const lines = cell.rounds.flatMap((round) => round.exclusions);
  const nobody = element("p", "No client was excluded in any round.");
  at("excluded").replaceChildren(lines.length ? list(lines) : nobody);
}
