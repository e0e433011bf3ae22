// What changes what, and the first drawing. Parts that have nothing to show are not in the page.

function listen(id, kind, answer) {
  at(id)?.addEventListener(kind, answer);
}

// Each part is on the screen before the next one is drawn.
async function everything() {
  for (const [part, drawn] of [["rounds", curves], ["trust", chooseRun], ["labels", holdings]]) {
    if (!at(part)) continue;
    drawn();
    await new Promise((shown) => setTimeout(shown));
  }
  markWide();
}

function prepare() {
  const names = DATA.runs.map((run) => run.name);
  if (at("trust")) OPENING = opening();
  if (at("labels-run")) fill(at("labels-run"), names);
  if (at("trust-run")) fill(at("trust-run"), names, names[OPENING.run]);
  if (at("curves-run")) fill(at("curves-run"), ["all", ...names]);
  const all = DATA.runs.flatMap(({ measured }) => Object.values(measured).flat());
  const choices = [...new Set(all.map(({ name }) => name))];
  if (at("rounds")) fill(at("curves-method"), choices.length > 1 ? ["all", ...choices] : choices);
  for (const id of ["curves-run", "curves-method"]) listen(id, "change", curves);
  for (const id of ["labels-run", "labels-seed"]) listen(id, "change", holdings);
  listen("trust-run", "change", chooseRun);
  listen("trust-method", "change", chooseMethod);
  listen("trust-seed", "change", chooseSeed);
  for (const id of ["client", "cause"]) listen(id, "change", trust);
  listen("round", "input", trust);
  listen("choice", "submit", (event) => event.preventDefault());
  for (const radio of document.querySelectorAll("input[name=scale]"))
    radio.addEventListener("change", trust);
  document.addEventListener("toggle", markWide, true);
  dark.addEventListener("change", everything);
  let before = narrow();
  addEventListener("resize", () => {
    markWide();
    if (narrow() === before) return;
    before = narrow();
    everything();
  });
}

async function begin() {
  const [data, plotly] = await Promise.all([unpacked("data"), unpacked("plotly")]);
  DATA = JSON.parse(data);
  document.head.append(element("script", plotly));
  prepare();
  await everything();
  document.documentElement.dataset.ready = "true";
}

begin();
