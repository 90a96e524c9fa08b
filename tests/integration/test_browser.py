"""The report in a real browser: charts, no network requests, and escaped names."""

from pathlib import Path

import msgspec
import pytest

from esprof.reports.html.page import write_report
from tests.cases import report as reportcase
from tests.cases.browser import chromium, requests
from tests.cases.marks import soak

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
ActionChains, WebDriverWait = webdriver.ActionChains, pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
pytestmark = pytest.mark.integration

REAL_TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


class Opened:
    """A report written to a file and opened in the browser."""

    def __init__(self, browser, report, path):
        write_report(report, path)
        self.browser, self.url = browser, path.as_uri()
        _drain(browser)
        browser.get(self.url)

    def __call__(self, script):
        return self.browser.execute_script(f"return {script}")

    def console(self):
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requests(self):
        return requests(self.browser)

    def drawn(self, chart, mark):
        """How many marks of a chart have a size on the screen."""
        return self(
            f"[...document.querySelectorAll('#{chart} .main-svg {mark}')]"
            ".filter(mark => mark.getBoundingClientRect().width > 0).length"
        )


def _drain(browser):
    """Forget what earlier pages logged."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")


def open_page(browser, report, tmp_path):
    return Opened(browser, report, tmp_path / "report.html")


def assert_sound(page):
    """No complaint on the console, and no request but for the file itself (and what it carries as data:)."""
    assert page.console() == []
    assert {url for url in page.requests() if not url.startswith("data:")} == {page.url}


def test_every_chart_draws(browser, tmp_path):
    report = reportcase.report()
    page = open_page(browser, report, tmp_path)
    # Seven parts on four ranks; none of them is zero.
    assert page.drawn("breakdown-chart", ".bars .point path") == 28
    assert page.drawn("what-if-chart", ".bars .point path") == 5
    assert page.drawn("what-if-chart", ".xerror") == 5
    drawn = [*report.steps.series.values(), *(mark.steps for mark in report.steps.marks)]
    assert page.drawn("steps-chart", ".scatterlayer .point") == sum(len(series.step) for series in drawn)
    # The window, mean and median; an upright line has no width.
    assert page.drawn("steps-chart", ".shapelayer path") == 3
    assert page.drawn("critical-path-chart", ".bars .point path") == 8
    assert page.drawn("timeline-chart", ".bars .point path") == report.timeline.shown
    # The thread, and eight functions of all ranks; the trees of single ranks are not seen.
    assert page.drawn("flame-chart", ".slice path.surface") == 9
    assert_sound(page)


def test_selecting_a_rank_shows_its_stacks(browser, tmp_path):
    whole = reportcase.report()
    other = msgspec.structs.replace(whole.flame.trees[2], nodes=whole.flame.trees[2].nodes[:2])
    flame = msgspec.structs.replace(whole.flame, trees=(*whole.flame.trees[:2], other, *whole.flame.trees[3:]))
    page = open_page(browser, msgspec.structs.replace(whole, flame=flame), tmp_path)
    choice = browser.find_element("css selector", "select[data-chart=flame-chart]")
    assert [option.text for option in choice.find_elements("tag name", "option")][:3] == [
        "all ranks",
        "rank 0",
        "rank 1",
    ]
    choice.send_keys("rank 1")
    WebDriverWait(browser, 10).until(lambda _: page.drawn("flame-chart", ".slice path.surface") == 3)
    assert_sound(page)


def test_names_from_a_trace_are_not_executed(browser, tmp_path):
    page = open_page(browser, reportcase.hostile_report(), tmp_path)
    # An alert would have made each of these calls fail.
    assert page("document.querySelectorAll('img').length") == 0
    assert page("[...document.scripts].filter(script => script.text.trim() === 'alert(1)').length") == 0
    assert page("document.querySelectorAll('.main-svg a').length") == 0
    assert "<script>alert(1)</script>" in page("document.querySelector('h1').textContent")
    assert "<script>" in page("document.querySelector('#what-if-chart .ytick text').textContent")
    assert_sound(page)


def test_a_name_in_a_tooltip_is_shown_literally(browser, tmp_path):
    page = open_page(browser, reportcase.hostile_report(), tmp_path)
    page("Plotly.Fx.hover('timeline-chart', [{curveNumber: 0, pointNumber: 0}])")
    shown = page("document.querySelector('#timeline-chart .hoverlayer').textContent")
    assert "<script>alert(1)</script>%{x}{{7*7}}" in shown
    page("Plotly.Fx.hover('steps-chart', [{curveNumber: 3, pointNumber: 2}])")
    shown = page("document.querySelector('#steps-chart .hoverlayer').textContent")
    assert "step 40: 240.6 ms, 5.1 s after the start" in shown
    assert "<script>alert(1)</script>%{x}{{7*7}}" in shown
    page("document.getElementById('flame-chart').scrollIntoView({behavior: 'instant'})")
    ActionChains(browser).move_to_element(
        browser.find_element("css selector", "#flame-chart .slice:nth-child(2)")
    ).perform()
    tip = "document.querySelector('#flame-chart .hoverlayer').textContent"
    WebDriverWait(browser, 10).until(lambda _: page(tip))
    assert "<script>alert(1)</script>%{x}{{7*7}}" in page(tip)
    assert_sound(page)


def test_an_injected_script_does_not_run(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    page(
        """(() => {
            const script = document.createElement('script');
            script.textContent = 'window.slipped = true';
            document.body.append(script);
        })()"""
    )
    assert page("window.slipped") is None


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_the_page_never_scrolls_sideways(browser, tmp_path, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for report in (reportcase.report(ranks=16), reportcase.hostile_report()):
            page = open_page(browser, report, tmp_path)
            assert page("document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_texts_are_readable_on_light_and_dark_pages(browser, tmp_path):
    """In light and dark the chart's texts have the page's own colour, which differs from its ground."""
    seen = {}
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        page = open_page(browser, reportcase.report(), tmp_path)
        ink = page("getComputedStyle(document.querySelector('#breakdown-chart .ytick text')).fill")
        assert ink == page("getComputedStyle(document.body).color")
        seen[scheme] = ink, page("getComputedStyle(document.querySelector('section')).backgroundColor")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["light"] != seen["dark"]


@pytest.mark.parametrize("trace", [soak("dataloader-w0"), "torchrec-4xv100/long_a2a_3"])
def test_the_page_of_a_real_trace(browser, tmp_path, trace):
    if not (REAL_TRACES / trace).exists():
        pytest.skip(f"the real traces are not here ({REAL_TRACES})")
    import esprof
    from esprof.analyzers import summarize

    report = summarize(esprof.load(REAL_TRACES / trace))
    page = open_page(browser, report, tmp_path)
    assert page.drawn("breakdown-chart", ".bars .point path") >= len(report.ranks)
    assert page.drawn("timeline-chart", ".bars .point path") > 0
    assert page.drawn("critical-path-chart", ".bars .point path") > 0
    assert_sound(page)
