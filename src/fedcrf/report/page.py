"""The report as one HTML file that needs nothing else: data, program and Plotly lie in it.

Data and Plotly are compressed, and unpacked by the browser. Plotly is the bundle of its charts on
axes, ``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min``, under
``gzip -9n``; its licence lies beside it.
"""

from __future__ import annotations

import gzip
from base64 import b85encode
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter

from fedcrf._version import __version__
from fedcrf.files import write_text
from fedcrf.report.reading import Report

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
        data=packed(TypeAdapter(dict[str, Any]).dump_json(report.drawn)),  # NaN becomes null
        style=Markup(_asset("report.css").decode()),
        program=Markup("\n".join(_asset(f"{name}.js").decode() for name in PROGRAM)),
        plotly=_as_text(_asset("plotly-cartesian.min.js.gz")),
    )


def packed(content: bytes) -> str:
    """Return bytes compressed, as text that may stand in a script element."""
    return _as_text(gzip.compress(content, mtime=0))


def _as_text(content: bytes) -> str:
    """Return bytes in base 85, which takes 6 % less than base 64, without a sign of HTML's."""
    return b85encode(content).translate(bytes.maketrans(b"&<>", b".:,")).decode()


def _asset(name: str) -> bytes:
    return (resources.files("fedcrf.report") / "templates" / name).read_bytes()
