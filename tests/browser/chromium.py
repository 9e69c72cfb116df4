"""Chromium without a window, as the pages' reader."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WHY_NOT = "" if BROWSER and DRIVER else "Chromium or its driver is not installed"
_PATIENCE = 60


class Browser:
    """A browser that shows one page after another."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER or ""
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver: Any = webdriver.Chrome(
            options=options, service=Service(DRIVER, log_output=os.devnull, env=dict(os.environ))
        )

    def open(self, path: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True, at: str = "") -> None:
        """Show a page and wait until its pictures are drawn."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(f"{path.resolve().as_uri()}{at}")
        if scripts:
            self.wait("return document.documentElement.dataset.ready")

    def wait(self, script: str) -> Any:
        """Return what a script gives as soon as that is something."""
        until = time.monotonic() + _PATIENCE
        while not (found := self.run(script)):
            assert time.monotonic() < until, f"not in time: {script}; {self.complaints()}"
            time.sleep(0.05)
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def send(self, command: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def complaints(self) -> list[str]:
        """What the console shows, Bokeh's notes on its progress aside."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] not in ("INFO", "DEBUG")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for, pictures within it aside."""
        events = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        sent = (one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith("data:")]

    def screenshot(self) -> bytes:
        """The whole page as a PNG."""
        width, height = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(taken["data"])

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
