// What changes what, and the first drawing.

function everything() {
  curves();
  holdings();
  chooseRun();
}

for (const id of ["labels-run", "trust-run"])
  if (at(id))
    fill(
      at(id),
      DATA.runs.map((run) => run.name),
    );
if (at("curves-run")) fill(at("curves-run"), ["all", ...DATA.runs.map((run) => run.name)]);
fill(at("curves-method"), [
  "all",
  ...new Set(DATA.runs.flatMap((run) => run.accuracy.map((curve) => curve.name))),
]);
at("curves-run")?.addEventListener("change", curves);
at("curves-method").addEventListener("change", curves);
at("labels-run")?.addEventListener("change", holdings);
at("labels-seed").addEventListener("change", holdings);
at("trust-run")?.addEventListener("change", chooseRun);
at("trust-method").addEventListener("change", chooseMethod);
at("trust-seed").addEventListener("change", chooseSeed);
at("client").addEventListener("change", trust);
at("cause").addEventListener("change", trust);
at("round").addEventListener("input", trust);
at("choice").addEventListener("submit", (event) => event.preventDefault());
for (const radio of document.querySelectorAll("input[name=scale]"))
  radio.addEventListener("change", trust);
dark.addEventListener("change", everything);
addEventListener(
  "resize",
  (() => {
    let before = narrow();
    return () => {
      if (narrow() !== before) {
        before = narrow();
        everything();
      }
    };
  })(),
);
everything();
document.documentElement.dataset.ready = "true";
