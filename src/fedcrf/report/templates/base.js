"use strict";
// Draws what the data element holds. All text goes through textContent, or `plain` for Plotly,
// which reads tags in labels.

let DATA; // from `begin` on
// Okabe and Ito's palette, in an order that keeps neighbours apart, for light and dark paper.
const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B47D00", "#3A94C9", "#000000", "#7F7F7F"],
  dark: ["#56B4E9", "#FF8A3D", "#22C79A", "#E59BC4", "#E69F00", "#F0E442", "#FFFFFF", "#A0A0A0"],
};
const DASHES = ["solid", "dash", "dashdot", "dot"];
const DASHED = ["Solid", "Dashed", "Dash-dotted", "Dotted"];
const EVERY_ROUND = 20; // so many rounds have a tick each
const dark = matchMedia("(prefers-color-scheme: dark)");
const at = (id) => document.getElementById(id);
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const plain = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const palette = () => COLOURS[dark.matches ? "dark" : "light"];
const known = (value) => value !== null && value !== undefined;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const isAlone = (value, i, all) => known(value) && !known(all[i - 1]) && !known(all[i + 1]);
const lineMode = (values) => (values.some(isAlone) ? "lines+markers" : "lines"); // one is no line
// Not Math.max(...values): a call does not take a hundred thousand arguments.
const largest = (values, least) => values.reduce((top, value) => Math.max(top, value), least);
const smallest = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);

// The same as the Python that tells the terminal: a dash for what is not known, no row of digits.
function text(value, digits) {
  if (!known(value)) return "–";
  if (Math.abs(value) >= 9999) return value > 0 ? "over 9999" : "under −9999";
  const written = value.toFixed(digits);
  return Number(written) === 0 ? (0).toFixed(digits) : written.replace("-", "−");
}

const capital = (line) => line[0].toUpperCase() + line.slice(1);

function element(kind, content, attributes = {}) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
}

function list(lines) {
  const items = lines.map((line) => element("li", line));
  return element("ul", items);
}

function table(header, rows, chosen = -1) {
  const names = header.map((name) => element("th", name, { scope: "col" }));
  const body = rows.map(([first, ...others], number) => {
    const cells = [element("th", first, { scope: "row" }), ...others.map((each) => element("td", each))];
    return element("tr", cells, number === chosen ? { class: "chosen", "aria-current": "true" } : {});
  });
  return element("table", [element("thead", element("tr", names)), element("tbody", body)]);
}

// What an element holds as compressed bytes.
function unpacked(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Tables that are wider than the page say so.
function markWide() {
  for (const each of document.querySelectorAll(".scroll"))
    each.toggleAttribute("data-wide", each.scrollWidth > each.clientWidth);
}

function fill(select, names, keep) {
  select.replaceChildren(...names.map((name, i) => element("option", String(name), { value: i })));
  const before = names.map(String).indexOf(String(keep));
  select.value = String(Math.max(0, before));
  select.closest("label").hidden = names.length < 2; // nothing to choose
}

const chosenName = (select) => select.selectedOptions[0]?.textContent;

// The drawings under way: Plotly ends one after it has returned, and fails where the chart was
// purged meanwhile. So `clear` waits, and does nothing where something new was drawn since.
const drawings = new Map();

function clear(id, why) {
  const latest = drawings.get(id);
  latest?.then(() => drawings.get(id) === latest && Plotly.purge(at(id)));
  at(`${id}-text`).textContent = why;
}

function draw(id, traces, layout, summary) {
  const ink = colour("ink"),
    grid = colour("grid");
  const axis = {
    gridcolor: grid,
    zerolinecolor: colour("line"),
    linecolor: colour("line"),
    automargin: true,
  };
  const most = largest(traces.flatMap(({ x }) => x ?? []).filter(Number.isFinite), -Infinity);
  const axes = {};
  for (const [name, value] of Object.entries(layout)) {
    const whole = value.title?.text === "round" && most <= (narrow() ? 10 : EVERY_ROUND);
    if (/^[xy]axis/.test(name)) axes[name] = { ...axis, ...(whole && { dtick: 1 }), ...value };
  }
  const drawing = Plotly.react(
    at(id),
    traces,
    {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      dragmode: false,
      font: { color: ink, family: getComputedStyle(document.body).fontFamily, size: 13 },
      margin: { l: 10, r: 10, t: 10, b: 10 },
      hoverlabel: { align: "left" },
      xaxis: axis,
      yaxis: axis,
      ...layout,
      ...axes,
    },
    { displayModeBar: false, responsive: true },
  );
  const before = drawings.get(id);
  const both = drawing.then(() => before);
  drawings.set(id, both);
  at(`${id}-text`).textContent = summary;
}

const narrow = () => document.documentElement.clientWidth < 520;
const rowsHeight = (count, each) => Math.min(760, 90 + Math.max(4, count) * each);
const CLIENT_AXIS = {
  title: { text: "client" },
  type: "category",
  autorange: "reversed",
  showgrid: false,
};
const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } };
// A scale from the first colour to the last, through those between them.
const shades = (...names) => names.map((name, i) => [i / (names.length - 1), colour(name)]);
