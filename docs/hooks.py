"""What the site is made of besides the pages of this folder: the results, and equations as MathML.

MkDocs calls the functions by their names.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = (".md", ".png", ".svg")
REPORTED = "results/paper/mnist-noniid"
"""The published run whose report is part of the site."""

UPWARDS = re.compile(r"\]\((\.\./[^)#]+)")
"""The start of a link to another folder."""

EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add results and examples where they lie in the repository, and the report of one run."""
    for path in sorted([*(ROOT / "results").rglob("*"), *(ROOT / "examples").rglob("*.md")]):
        if path.suffix in SHOWN or path.name == "commands.toml":
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    page = File.generated(config, f"{REPORTED}/report.html", content=_report())
    files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead where they do in the repository, of which docs/ is the site's root."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if (ROOT / here).exists() else f"docs/{here}")

    def in_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1])).removeprefix("docs/")
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}"

    return UPWARDS.sub(in_site, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn LaTeX into MathML, which browsers draw by themselves."""
    return EQUATION.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match["open"] == "[" else "inline"
    equation = convert(html.unescape(match["latex"]).strip(), display=display)
    return f'<div class="equation">{equation}</div>' if display == "block" else equation


def _report() -> str:
    from fedcrf.report.page import read_report, render

    return render(read_report([ROOT / REPORTED]))
