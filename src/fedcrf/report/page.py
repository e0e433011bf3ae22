"""The report as one HTML file that needs nothing else: data, program and Plotly lie in it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from pydantic import TypeAdapter

from fedcrf._version import __version__
from fedcrf.files import write_text
from fedcrf.report.content import Drawn, Report

PROGRAM = (
    "base", "overview", "trust", "field", "weights", "causes", "client", "clients", "begin",
)  # fmt: skip
"""The page's program, in the order in which its parts need each other."""

# What would end the script element, or break the line in an old browser; JSON has them in strings
# only, where these escapes mean the same.
ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def write_page(report: Report, path: Path) -> None:
    """Write a report as one self-contained HTML file."""
    page = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)


def render(report: Report) -> str:
    """Return a report as HTML; every name in it is escaped."""
    environment = Environment(
        loader=PackageLoader("fedcrf.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        report=report,
        version=__version__,
        data=data_json(report.drawn),
        style=_asset("report.css"),
        program=Markup("\n").join(_asset(f"{name}.js") for name in PROGRAM),
        plotly=Markup(get_plotlyjs()),
    )


def data_json(drawn: Drawn) -> Markup:
    """Return what is drawn as JSON that may stand in a script element."""
    text = TypeAdapter(Drawn).dump_json(drawn).decode()
    return Markup(text.translate(ESCAPES))


def _asset(name: str) -> Markup:
    file = resources.files("fedcrf.report") / "templates" / name
    return Markup(file.read_text(encoding="utf-8"))
