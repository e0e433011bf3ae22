// Curves over the rounds, and who holds which labels.

const FEW_LINES = 3; // the bands of more would hide one another, and their numbers fill a paragraph

const LOSS_TICKS = Array.from({ length: 16 }, (_, i) => i - 6).flatMap((power) =>
  [1, 2, 5].map((digit) => Number(`${digit}e${power}`)),
);

// How what was measured is drawn and written. Of a metric of the user's it is not known which way
// is better.
const METRIC = {
  axis: {},
  bounds: [-Infinity, Infinity],
  said: "Last",
  chosen: (values) => values.at(-1),
  written: (value) => String(Number(value.toPrecision(4))),
  hover: ".4~g",
};
const LOSS = {
  ...METRIC,
  said: "Best",
  chosen: smallest,
  written: (value) => value.toFixed(3),
  hover: ".3f",
};
const ACCURACY = {
  ...LOSS,
  axis: { tickformat: ".2f", autorangeoptions: { clipmin: 0, clipmax: 1 } },
  bounds: [0, 1],
  chosen: (values) => largest(values, -Infinity),
};

function scaleOf(what, means) {
  if (what !== "loss") return what === "accuracy" ? ACCURACY : METRIC;
  const above = means.filter((mean) => mean > 0);
  if (!above.length || means.some((mean) => mean < 0)) return LOSS;
  const range = [smallest(above) * 0.85, largest(above, 0) * 1.2].map(Math.log10);
  const title = { text: "loss (logarithmic scale)" };
  const axis = { title, type: "log", range, tickvals: LOSS_TICKS, ticktext: LOSS_TICKS.map(String) };
  return { ...LOSS, axis, bounds: [1e-9, Infinity] };
}

// Of one run's methods: where colours come again, their dashes are others.
const dashPlace = (place) => place + Math.floor(place / palette().length);

function drawCurves(id, what, wanted, method) {
  const several = DATA.runs.length > 1;
  const curvesOf = (run) => run.measured[what] ?? [];
  const names = [...new Set(DATA.runs.flatMap((run) => curvesOf(run).map((curve) => curve.name)))];
  const shown = DATA.runs.flatMap((run, number) =>
    curvesOf(run)
      .filter((curve) => (wanted < 0 || wanted === number) && (!method || curve.name === method))
      .map((curve) => ({
        curve,
        place: names.indexOf(curve.name),
        dash: DASHES[(several ? number : dashPlace(names.indexOf(curve.name))) % DASHES.length],
        label: several ? `${run.name}: ${curve.name}` : curve.name,
      })),
  );
  shown.forEach((each) => {
    each.first = shown.find(({ place }) => place === each.place) === each;
    each.banded = shown.length <= FEW_LINES;
  });
  const means = shown.flatMap(({ curve }) => curve.mean.filter(known));
  const scale = scaleOf(what, means);
  const layout = {
    height: 340 + 22 * Math.ceil(names.length / 3),
    hovermode: "x unified",
    legend: LEGEND,
    xaxis: { title: { text: "round" } },
    yaxis: { title: { text: plain(what) }, ...scale.axis },
  };
  const traces = shown.flatMap((each) => curveTraces(each, scale));
  draw(id, traces, layout, curvesSummary(shown, scale) + (several ? dashesOf(what, wanted) : ""));
}

// The value of each line; of more than a few, which have the lowest and the highest.
function curvesSummary(shown, scale) {
  const values = shown
    .map(({ curve, label }) => ({ label, all: curve.mean.filter(known) }))
    .filter(({ all }) => all.length)
    .map(({ label, all }) => ({ label, value: scale.chosen(all) }));
  if (!values.length) return "Not measured.";
  const mean = shown.some(({ curve }) => curve.seeds > 1) ? " mean" : "";
  const said = (each) => `${each.label} ${scale.written(each.value)}`;
  if (values.length <= FEW_LINES) return `${scale.said}${mean}: ${values.map(said).join(", ")}.`;
  const sorted = [...values].sort((a, b) => a.value - b.value);
  return `${scale.said}${mean}: from ${said(sorted[0])} to ${said(sorted.at(-1))}.`;
}

// Which runs have which dashes.
function dashesOf(what, wanted) {
  const runs = DATA.runs.map(({ name, measured }, number) => ({ name, number, of: measured[what] }));
  const drawn = runs.filter(({ number, of }) => of && (wanted < 0 || wanted === number));
  return DASHED.map((dashed, i) => {
    const names = drawn.filter(({ number }) => number % DASHED.length === i).map(({ name }) => name);
    return names.length ? ` ${dashed} lines: ${names.join(", ")}.` : "";
  }).join("");
}

// The mean, and if `banded` the band of one standard deviation, where there are several seeds. What
// is measured lies within the bounds, so the band ends there. A method has one entry in the legend.
function curveTraces({ curve, place, dash, label, first, banded }, { bounds: [least, most], hover }) {
  const paint = palette()[place % palette().length];
  const common = { x: curve.rounds, legendgroup: curve.name };
  const band = { ...common, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  const edge = (sign) =>
    curve.mean.map((mean, i) =>
      known(mean) && known(curve.sd[i])
        ? Math.min(most, Math.max(least, mean + sign * curve.sd[i]))
        : null,
    );
  const bands = [
    { ...band, y: edge(-1) },
    { ...band, y: edge(1), fill: "tonexty", fillcolor: `${paint}1a` },
  ];
  const mean = {
    ...common,
    y: curve.mean,
    mode: lineMode(curve.mean),
    name: plain(curve.name),
    showlegend: first,
    line: { color: paint, width: 2, dash },
    hovertemplate: `${plain(label)}: %{y:${hover}}<extra></extra>`,
  };
  return banded && curve.sd.some(known) ? [...bands, mean] : [mean];
}

function curves() {
  const wanted = at("curves-run") ? Number(at("curves-run").value) - 1 : -1;
  const method = at("curves-method").value === "0" ? null : chosenName(at("curves-method"));
  DATA.measured.forEach((what, i) => drawCurves(`measured-${i}`, what, wanted, method));
}

function holdings() {
  const run = DATA.runs[at("labels-run") ? Number(at("labels-run").value) : 0];
  const seeds = run.holdings.map((each) => each.seed);
  fill(at("labels-seed"), seeds, chosenName(at("labels-seed")));
  const held = run.holdings[Number(at("labels-seed").value)];
  if (!held) {
    clear("holdings", "What the clients hold is not recorded.");
    at("holdings-table").replaceChildren();
    return;
  }
  const labels = held.class_names.map(plain);
  const all = held.clients.map((each) => each.labels);
  const many = labels.length > 40;
  const counts = all.map((row) => row.map((count) => count || null));
  const few = all.length * labels.length <= 400 && !(narrow() && labels.length > 12);
  draw(
    "holdings",
    [
      {
        type: "heatmap",
        z: counts,
        x: labels.map((_, i) => i),
        y: held.clients.map((each) => plain(each.client)),
        customdata: all.map(() => labels),
        colorscale: shades("few", "many"),
        zmin: 0,
        hoverongaps: false,
        xgap: 1,
        ygap: 1,
        texttemplate: few ? "%{z}" : "",
        textfont: { size: narrow() ? 8 : 11 },
        hovertemplate: "client %{y}, label %{customdata}: %{z} examples<extra></extra>",
        colorbar: bar("examples"),
        showscale: !narrow(),
      },
    ],
    {
      height: rowsHeight(held.clients.length, 24),
      xaxis: {
        title: { text: "label" },
        tickvals: many ? [] : labels.map((_, i) => i),
        ticktext: labels,
        showgrid: false,
        zeroline: false,
      },
      yaxis: CLIENT_AXIS,
    },
    `Seed ${held.seed}: ${held.clients.length} clients hold ${span(all.map(kinds))} of ` +
      `${labels.length} labels, and ${span(all.map(sum))} training examples.`,
  );
  at("holdings-table").replaceChildren(
    table(
      ["client", "train", "validation", "test", ...held.class_names],
      held.clients.map(({ client, train, validation, test, labels: counts }) =>
        [client, train, validation, test, ...counts].map(String),
      ),
    ),
  );
  markWide();
}

const kinds = (counts) => counts.filter((count) => count > 0).length;

function span(values) {
  const [least, most] = [smallest(values), largest(values, -Infinity)];
  return least === most ? `${least}` : `${least} to ${most}`;
}
