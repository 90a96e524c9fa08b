"""The page of `esprof compare` in a real browser."""

import pytest

from esprof.analyzers import compare
from esprof.reports.html.comparison_page import render_comparison
from tests.cases.browser import chromium, requests, scheme, serious, width
from tests.cases.compared import Made, made
from tests.unit.reports.terminal.test_comparison import HOSTILE, comparison

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a pair in which the number of buckets grew, and the forward pass shrank."""
    page = tmp_path_factory.mktemp("page") / "changes.html"
    page.write_text(render_comparison(compare(made(Made()), made(Made().but(buckets=9, forward=15)))))
    return page.as_uri()


@pytest.mark.parametrize("pixels", [375, 1440])
def test_the_large_parts_have_a_bar_on_every_screen(browser, address, pixels):
    browser.get("about:blank")
    requests(browser)
    with width(browser, pixels):
        browser.get(address)
        bars = browser.execute_script(
            "return [...document.querySelectorAll('.changes .more, .changes .less')].map(bar => bar.offsetWidth)"
        )
        # The step, exposed communication and compute; what else differs is small.
        assert len([wide for wide in bars if wide > 60]) == 3
        assert browser.execute_script("return document.documentElement.scrollWidth") <= pixels
    assert browser.get_log("browser") == []
    assert set(requests(browser)) - {"data:,"} == {address}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, address, name):
    with scheme(browser, name):
        browser.get(address)
        assert serious(browser) == {}


def test_a_name_is_no_markup(browser, tmp_path):
    page = tmp_path / "changes.html"
    page.write_text(render_comparison(comparison(HOSTILE)))
    browser.get(page.as_uri())
    assert browser.execute_script("return document.scripts.length") == 0
    assert "<script>alert(1)</script>" in browser.find_element("tag name", "h1").text
