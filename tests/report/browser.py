"""A headless Chromium that looks at a page as a reader does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
# Besides being headless: no network of its own, and nothing that a container lacks.
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(
        self,
        page: Path,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 900,
        ready: str = "document.documentElement.dataset.ready === 'true'",
    ) -> None:
        """Open a file offline, in a colour scheme, on a screen of so many CSS pixels."""
        command = self.driver.execute_cdp_cmd
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        phone = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        command("Emulation.setDeviceMetricsOverride", metrics)
        command("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        command("Network.emulateNetworkConditions", offline)
        self.driver.get(page.resolve().as_uri())
        self.wait(ready)

    def wait(self, ready: str) -> None:
        """Wait until an expression of the page is true."""
        WebDriverWait(self.driver, 30).until(
            lambda driver: driver.execute_script(f"return {ready}")
        )

    def errors(self) -> list[Any]:
        """Return what the console was told since the last call."""
        return list(self.driver.get_log("browser"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, element: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", element))

    def screenshot(self, path: Path) -> None:
        """Write what is on the screen as PNG."""
        self.driver.save_screenshot(str(path))
