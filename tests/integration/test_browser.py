"""The report in a real browser: charts, no network requests, and escaped names."""

from pathlib import Path

import msgspec
import pytest

from esprof.reports.html.page import write_report
from tests.cases import report as reportcase
from tests.cases.browser import chromium, requests, scheme, serious, undrawn, wait_for_charts, width
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
    page = Opened(browser, report, tmp_path / "report.html")
    wait_for_charts(browser)
    return page


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
    assert page.drawn("flame-chart", ".bars .point path") == 9
    assert_sound(page)


def test_a_chart_is_drawn_once_it_comes_near_the_screen_or_is_printed(browser, tmp_path):
    never_idle = browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": "window.requestIdleCallback = () => {};"}
    )
    try:
        page = Opened(browser, reportcase.report(), tmp_path / "report.html")
        assert {"timeline-chart", "flame-chart", "storage-chart"} <= set(undrawn(browser))
        page("document.querySelector('nav a[href=\"#python\"]').click()")
        WebDriverWait(browser, 10).until(lambda _: "flame-chart" not in undrawn(browser))
        assert "storage-chart" in undrawn(browser)
        browser.execute_cdp_cmd("Page.printToPDF", {})
        assert undrawn(browser) == []
        assert page.drawn("timeline-chart", ".bars .point path") > 0
        assert_sound(page)
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", never_idle)


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
    WebDriverWait(browser, 10).until(lambda _: page.drawn("flame-chart", ".bars .point path") == 3)
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
        browser.find_element("css selector", "#flame-chart .point:nth-child(2)")
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


def test_a_tooltip_of_a_bar_says_how_long_it_is(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    tip = "document.querySelector('#timeline-chart .hoverlayer').textContent"
    page("Plotly.Fx.hover('timeline-chart', [{curveNumber: 0, pointNumber: 0}])")
    assert "wait for peers at all_reduce" in page(tip)
    assert "42.5 ms, from 62.000 ms" in page(tip)
    assert "rank 1 arrived last" in page(tip)
    last = reportcase.charts(reportcase.report())["timeline-chart"].data
    page(f"Plotly.Fx.hover('timeline-chart', [{{curveNumber: {len(last) - 1}, pointNumber: 0}}])")
    # Plotly shows a tooltip later if another one has just been shown.
    WebDriverWait(browser, 10).until(lambda _: "critical path: DataLoader.next, rank 1" in page(tip))


def test_the_timeline_shows_one_rank_alone(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    browser.find_element("css selector", "select[data-zoom=timeline-chart]").send_keys("rank 2")
    labels = "[...document.querySelectorAll('#timeline-chart .ytick text')].map(text => text.textContent)"
    WebDriverWait(browser, 10).until(lambda _: len(page(labels)) == 4)
    assert {text.split(" · ")[0] for text in page(labels)} == {"2"}
    assert_sound(page)


def test_a_click_on_a_function_zooms_in_on_it(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    page("document.getElementById('flame-chart').scrollIntoView({behavior: 'instant'})")
    ActionChains(browser).move_to_element(
        browser.find_element("css selector", "#flame-chart .point:nth-child(3)")
    ).click().perform()
    span = "document.getElementById('flame-chart').layout.xaxis.range"
    WebDriverWait(browser, 10).until(lambda _: page(span)[1] < 2_000)
    assert page(span) == [0, 1_680]


def test_a_control_answers_within_a_tenth_of_a_second(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    slider = browser.find_element("css selector", ".explorer input[type=range]")
    shown = "document.querySelector('.explorer .priced').textContent"
    assert page(shown) == "120.3 ms a step, as measured"
    slider.send_keys(webdriver.Keys.ARROW_RIGHT)
    assert page(shown).startswith("116.9 ms a step (114.6 to 120.4 ms)")
    assert slider.get_attribute("aria-valuetext") == "2x"
    browser.find_element("css selector", ".explorer input[type=checkbox]").send_keys(webdriver.Keys.SPACE)
    assert page(shown).startswith("76.0 ms a step")
    assert page("document.querySelector('.explorer code').textContent").endswith("--what-if network=2x,data=0")
    took = browser.execute_async_script(
        """const done = arguments[0], slider = document.querySelector('.explorer input[type=range]');
        const begin = performance.now();
        slider.value = 0;
        slider.dispatchEvent(new Event('input', {bubbles: true}));
        requestAnimationFrame(() => done(performance.now() - begin));"""
    )
    assert page(shown).startswith("79.4 ms a step")
    assert took < 100
    slider.send_keys(webdriver.Keys.END)
    assert page(shown) == "not predicted together"
    assert_sound(page)


@pytest.mark.parametrize("pixels", [375, 1440])
def test_the_plan_before_and_after(browser, tmp_path, pixels):
    with width(browser, pixels):
        page = open_page(browser, reportcase.report(), tmp_path)
        moved = "[...document.querySelectorAll('#plan .moved')].map(est => est.textContent)"
        assert page(moved) == ["4", "5", "4", "5"]  # Where they come to, and where they left.
        steps = "[...document.querySelectorAll('#plan .changes .step')].map(bar => bar.offsetWidth)"
        before, after, *_ = page(steps)
        assert before > after > 50
        assert page("document.documentElement.scrollWidth") <= pixels
        assert_sound(page)


def test_operations_are_searched_and_sorted(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    names = (
        "[...document.querySelectorAll('#operations-table tbody tr')].filter(row => !row.hidden)"
        ".map(row => row.cells[0].firstChild.textContent.trim())"
    )
    assert page(names)[0] == "aten::addmm"
    browser.find_element("css selector", "#operations-table th:nth-child(5) button").send_keys(webdriver.Keys.ENTER)
    assert page(names)[0] == "cudaStreamSynchronize"
    assert page("document.querySelector('#operations-table th:nth-child(5)').getAttribute('aria-sort')") == "descending"
    browser.find_element("css selector", "[data-filter]").send_keys("nccl")
    assert page(names) == ["nccl:all_reduce"]


def test_the_tab_key_reaches_every_control(browser, tmp_path):
    page = open_page(browser, reportcase.report(), tmp_path)
    reached = set()
    for _ in range(120):
        ActionChains(browser).send_keys(webdriver.Keys.TAB).perform()
        reached.add(page("document.activeElement.dataset.stride ? 'what-if' : document.activeElement.outerHTML"))
    controls = page(
        "[...document.querySelectorAll('nav a, select[data-zoom], select[data-chart], input[type=search], thead button')]"
        ".map(control => control.outerHTML)"
    )
    assert {*controls, "what-if"} <= reached


def test_axe_finds_nothing_serious(browser, tmp_path):
    for name in ("light", "dark"):
        with scheme(browser, name):
            page = open_page(browser, reportcase.report(), tmp_path)
            page("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
            assert serious(browser) == {}


@pytest.mark.parametrize("pixels", [375, 800, 1440])
def test_the_page_never_scrolls_sideways(browser, tmp_path, pixels):
    with width(browser, pixels):
        for report in (reportcase.report(ranks=16), reportcase.hostile_report()):
            page = open_page(browser, report, tmp_path)
            assert page("document.documentElement.scrollWidth") <= pixels
            # Nor is a link of the navigation cut on a narrow screen.
            ends = page("[...document.querySelectorAll('nav a')].map(link => link.getBoundingClientRect().right)")
            assert pixels > 640 or max(ends) <= pixels


def test_texts_are_readable_on_light_and_dark_pages(browser, tmp_path):
    """In light and dark the chart's texts have the page's own colour, which differs from its ground."""
    seen = {}
    for name in ("light", "dark"):
        with scheme(browser, name):
            page = open_page(browser, reportcase.report(), tmp_path)
            ink = page("getComputedStyle(document.querySelector('#breakdown-chart .ytick text')).fill")
            assert ink == page("getComputedStyle(document.body).color")
            seen[name] = ink, page("getComputedStyle(document.querySelector('section')).backgroundColor")
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


def test_the_page_of_a_thousand_ranks_is_small_and_drawn(browser, tmp_path):
    from esprof.analyzers import summarize
    from tests.cases.graph import ddp_rank, run_of

    late = {7: 10.0, 900: 5.0}
    run = run_of({rank: ddp_rank(slow=late.get(rank, rank % 10 / 100)) for rank in range(1_024)})
    page = open_page(browser, summarize(run), tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 8 << 20
    assert "rank 7" in page("document.querySelector('#arrivals').textContent")
    assert "16 of 1,024 ranks" in page("document.querySelector('#timeline').textContent")
    assert page.drawn("timeline-chart", ".bars .point path") > 50
    assert page.drawn("breakdown-chart", ".bars .point path") >= 32
    assert_sound(page)
