"""The report as one HTML file that needs nothing else: data, program and Plotly lie in it.

Data and Plotly are compressed, and unpacked by the browser. Plotly is the bundle of its charts on
axes, ``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min``, under
``gzip -9n``; its licence lies beside it.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter

from fedcrf._version import __version__
from fedcrf.files import write_text
from fedcrf.report.content import Drawn, Report

PROGRAM = (
    "base", "overview", "trust", "field", "weights", "causes", "client", "clients", "begin",
)  # fmt: skip
"""The page's program, in the order in which its parts need each other."""


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
        data=packed(TypeAdapter(Drawn).dump_json(report.drawn)),
        style=Markup(_asset("report.css").decode()),
        program=Markup("\n".join(_asset(f"{name}.js").decode() for name in PROGRAM)),
        plotly=b64encode(_asset("plotly-cartesian.min.js.gz")).decode(),
    )


def packed(content: bytes) -> str:
    """Return bytes compressed, as text that may stand in a script element."""
    return b64encode(gzip.compress(content, mtime=0)).decode()


def _asset(name: str) -> bytes:
    return (resources.files("fedcrf.report") / "templates" / name).read_bytes()
