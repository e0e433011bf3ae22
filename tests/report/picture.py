"""Draws docs/images/report.png anew: a part of the report of the published MNIST runs.

Usage: python tests/report/picture.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedcrf.report.page import write_page
from fedcrf.report.reading import read_report
from report.browser import open_browser

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 1100, 1050


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder, "profile")) as browser:
        page = Path(folder, "report.html")
        write_page(read_report([ROOT / "results" / "paper" / "mnist-noniid"]), page)
        browser.open(page, width=WIDTH, height=HEIGHT)
        browser.run("at('trust').scrollIntoView()")
        browser.screenshot(ROOT / "docs" / "images" / "report.png")


if __name__ == "__main__":
    main()
