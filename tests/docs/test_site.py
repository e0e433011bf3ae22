"""The documentation builds strictly, and opens from disk without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from report.browser import Browser

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # it waits for the documentation to be built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_every_reference_is_resolved(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "report.html"]
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} < {page.stem for page in pages}
    for page in pages:
        text = re.sub(r"<(pre|code).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
        assert "][" not in text, page
        assert not re.search(r'(?:src|rel="stylesheet" href)="https?:', text), page


def test_the_results_are_the_published_ones(site: Path) -> None:
    tables = (site / "results" / "paper" / "tables.html").read_text(encoding="utf-8")
    rows = (ROOT / "results" / "paper" / "table-noniid.csv").read_text().splitlines()[1:]
    assert len(rows) == 8
    for cell in [cell for row in rows for cell in row.split(",")]:
        assert f">{cell}<" in tables
    assert (site / "results" / "paper" / "mnist-noniid" / "accuracy.png").exists()
    assert "CRF-FedAvg" in (site / "results/paper/mnist-noniid/report.html").read_text("utf-8")


@pytest.mark.parametrize("page", ["index", "method", "architecture", "results/index"])
def test_a_page_opens_offline(chromium: Browser, site: Path, page: str) -> None:
    chromium.open(site / f"{page}.html", ready="document.readyState === 'complete'")
    assert chromium.errors() == []
    pictures = "return [...document.images].every((image) => image.naturalWidth > 0)"
    assert chromium.run(pictures)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_command_is_cut_off(chromium: Browser, site: Path, width: int) -> None:
    for page in ("index", "own-model", "see-a-run", "experiments"):
        chromium.open(
            site / f"{page}.html", width=width, ready="document.readyState === 'complete'"
        )
        cut = chromium.run(
            "return [...document.querySelectorAll('.language-sh code')]"
            "  .filter((each) => each.scrollWidth > each.clientWidth).length"
        )
        assert cut == 0, page
        assert chromium.run("return document.documentElement.scrollWidth") <= width, page


def test_what_is_looked_for_is_found_from_disk(chromium: Browser, site: Path) -> None:
    chromium.open(site / "index.html", ready="document.readyState === 'complete'")
    box = chromium.driver.find_element("css selector", "[data-md-component=search-query]")
    box.click()
    box.send_keys("trimmed mean")
    links = "[...document.querySelectorAll('.md-search-result__link')]"
    chromium.wait(f"{links}.some((link) => link.href.includes('rules.html#fedcrf.rules.Trimmed'))")
    assert chromium.errors() == []


def test_equations_are_drawn(chromium: Browser, site: Path) -> None:
    chromium.open(site / "method.html", ready="document.readyState === 'complete'")
    heights = chromium.run(
        "return [...document.querySelectorAll('math')].map((m) => m.getBoundingClientRect().height)"
    )
    assert len(heights) > 25
    assert min(heights) > 5
    assert "\\" not in chromium.run("return document.querySelector('article').innerText")
