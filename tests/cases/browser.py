"""A real browser for tests of pages."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = os.environ.get("ESPROF_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


@contextmanager
def chromium(profile) -> Iterator:
    """A headless Chromium with its own profile folder; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not CHROMEDRIVER:
        pytest.skip("Chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def requests(driver) -> list[str]:
    """The addresses that the browser has requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def undrawn(driver) -> list[str]:
    """The ids of the charts of a report that are not drawn yet."""
    return driver.execute_script(
        "return [...document.querySelectorAll('.chart:not(.js-plotly-plot)')].map(({id}) => id)"
    )


def wait_for_charts(driver) -> None:
    """Return once all charts of a report are drawn."""
    ui = pytest.importorskip("selenium.webdriver.support.ui")
    ui.WebDriverWait(driver, 60).until(lambda _: not undrawn(driver))


def serious(driver) -> dict[str, list]:
    """What axe-core finds serious on the page, with the elements concerned; the test is skipped without axe-core."""
    axe = os.environ.get("ESPROF_AXE")
    if not axe:
        pytest.skip("ESPROF_AXE does not name axe.min.js (npm pack axe-core)")
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": Path(axe).read_text(encoding="utf-8")})
    found = driver.execute_async_script("const done = arguments[0]; axe.run().then(({violations}) => done(violations))")
    return {
        one["id"]: [node["target"] for node in one["nodes"]][:5]
        for one in found
        if one["impact"] in ("serious", "critical")
    }


@contextmanager
def scheme(driver, name: str) -> Iterator[None]:
    """Within the block, the page is `light` or `dark`."""
    media = {"features": [{"name": "prefers-color-scheme", "value": name}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@contextmanager
def width(driver, pixels: int) -> Iterator[None]:
    """Within the block, the page is this wide."""
    size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
