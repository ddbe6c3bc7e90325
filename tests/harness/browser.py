"""A real headless Chromium, driven by selenium: for pages that people look at. Blocking: call it from a thread of its own.

Debian's chromium and chromium-driver; ``make test`` brings them. A fresh profile each time, nothing but the page is fetched.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from harness.process import wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)
WITHIN_S = 15.0


class Browser:
    """One window. ``driver`` is selenium's own."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def __repr__(self) -> str:
        return f"<Browser {self.driver.session_id}>"

    def open(self, url: str) -> None:
        """Load ``url``."""
        self.driver.get(url)

    def run(self, script: str, *args: Any) -> Any:
        """The value of a piece of JavaScript (with ``return``)."""
        return self.driver.execute_script(script, *args)

    def until(self, script: str, what: str, *args: Any) -> None:
        """Look again until ``script`` returns something true."""
        wait_until(lambda: bool(self.run(script, *args)), within_s=WITHIN_S, what=what)

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """A viewport of this size in CSS pixels, in one of the two colour schemes."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=scheme)

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def complaints(self) -> list[str]:
        """What the console said above info since the last call: errors, refused styles and scripts, failed fetches."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, file: Path) -> None:
        """The window as it is, as PNG."""
        self.driver.save_screenshot(str(file))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in ``folder``, ended at the end."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "no chromium on the path (Debian: apt-get install chromium)"
    assert driver, "no chromedriver on the path (Debian: apt-get install chromium-driver)"
    options = Options()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


def on_console(browser: Browser, act: Callable[[], None]) -> list[str]:
    """What the console complains of while ``act`` is done."""
    browser.complaints()
    act()
    return browser.complaints()
