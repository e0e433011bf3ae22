"""Draws docs/images/report.png anew: a part of the demonstration's page.

Usage, after `fedcrf demo`: python tests/report/picture.py [runs/demo]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedcrf.report.page import read_report, write_page
from report.browser import open_browser

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1100, 885
RUN, CLIENT, PLACE = "ipm", 3, 8
"""An attacker, in the ninth round, when it has long been found out."""


def main() -> None:
    demonstration = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder, "profile")) as browser:
        page = Path(folder, "report.html")
        write_page(read_report([demonstration]), page)
        browser.open(page, width=WIDTH, height=HEIGHT)
        for control, value in (("trust-run", RUN), ("client", CLIENT), ("round", PLACE)):
            browser.run(
                f"const control = at('{control}');"
                f"const chosen = [...(control.options ?? [])].find((o) => o.text === '{value}');"
                f"control.value = chosen ? chosen.value : '{value}';"
                "for (const type of ['input', 'change']) control.dispatchEvent(new Event(type))"
            )
        browser.run("at('trust').scrollIntoView()")
        browser.screenshot(PICTURE)


if __name__ == "__main__":
    main()
