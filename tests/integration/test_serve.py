"""`esprof serve` end to end: a real server, Chromium, and a running elastic job."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import pytest

from esprof.core.plan import read_plan
from esprof.run.logs import HISTORY
from tests.cases import live, record
from tests.cases.browser import chromium, requests, serious

WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
pytestmark = pytest.mark.integration

WITHIN_S = 90


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def job(tmp_path):
    """The Run of a running job of two ranks, one of them slow, after some steps."""
    run = tmp_path / "run"
    words = record.ranks(2, record.JOBS / "served.py", run)
    with subprocess.Popen(
        list(map(str, words)), env=record.environment(PYTHONPATH="."), text=True, stderr=subprocess.PIPE
    ) as process:
        try:
            until(lambda: (run / "run.json").exists() or process.poll() is not None)
            assert process.poll() is None, process.stderr.read()
            yield run
            (tmp_path / "stop").touch()
            assert process.wait(timeout=WITHIN_S) == 0, process.stderr.read()
        finally:
            process.kill()


@contextmanager
def serving(*runs, port=0, token=None):
    """(process, address) of a server of these Runs."""
    words = [*record.ESPROF, "serve", *runs, "--port", port]
    env = record.environment(**({"ESPROF_SERVE_TOKEN": token} if token else {}))
    with subprocess.Popen(
        list(map(str, words)), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            address = process.stdout.readline().strip()
            assert address, process.stderr.read()
            until(lambda: answers(address))
            yield process, address
        finally:
            process.kill()


def answers(address):
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def until(holds):
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def fill(path):
    """Leave no byte of its disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 512):
            pass


class Page:
    """The page in a browser, and actions of a user."""

    def __init__(self, browser, address):
        self.browser = browser
        browser.get("about:blank")
        browser.get_log("browser")
        requests(browser)
        browser.get(address)

    def text(self, section):
        return self.browser.execute_script(f"return document.getElementById('{section}').innerText")

    def shows(self, section, *texts):
        """Wait until a section shows these texts, without reloading the page."""
        WebDriverWait(self.browser, WITHIN_S).until(
            lambda _: all(text.lower() in (self.text(section) or "").lower() for text in texts),
            message=f"{section} does not show {texts}",
        )

    def press(self, button):
        WebDriverWait(self.browser, WITHIN_S).until(
            lambda _: self.browser.execute_script(
                f"const it = document.getElementById('button-{button}'); it?.click(); return it !== null"
            )
        )

    def search_until_proposed(self):
        """Search up to five times: on a busy machine the first steps may be too few or too uneven."""
        for _ in range(5):
            self.press("search")
            self.shows("advice", "Searched at")
            if "proposed" in self.text("advice").lower():
                return

    def next_step(self):
        shown = self.browser.execute_script(
            "return JSON.parse(document.querySelector('.plot')?.dataset.steps ?? '[[0]]').at(-1)[0]"
        )
        return int(shown)


def test_a_user_watches_a_job_accepts_a_plan_and_rolls_it_back(browser, job):
    with serving(job) as (server, address):
        page = Page(browser, address)
        page.shows("link", "live")
        page.shows("now", "running", "8 ESTs on 2 processes")
        first = page.next_step()
        WebDriverWait(browser, WITHIN_S).until(lambda _: page.next_step() > first + 5)
        page.search_until_proposed()
        page.shows("advice", "proposed", "predicted gain", "interval")

        # A second server reports the address of the first.
        events = subprocess.run(
            [*record.ESPROF, "serve", str(job), "--port", "0"], env=record.environment(), capture_output=True, text=True
        )
        assert (events.returncode, events.stdout) == (1, "")
        assert f"is served already at {address} (process {server.pid}" in events.stderr

        page.press("accept")
        page.shows("plan", "adopted", "Roll back")
        page.shows("history", "plan accepted by a user", "plan adopted")
        page.shows("steps", "plan 1")
        accepted = read_plan(job / "plan.json")
        counts = [len(ests) for ests in accepted.parts.assignment.body.ests]
        assert counts[0] > counts[1]

        server.send_signal(signal.SIGKILL)
        server.wait()
        page.shows("link", "no connection")
        port = address.rstrip("/").rpartition(":")[2]
    # What was decided is in the Run: another server knows it, and the page finds that by itself.
    with serving(job, port=port) as (server, again):
        assert again == address
        page.shows("link", "live")
        page.shows("plan", accepted.id)
        page.press("roll-back")
        page.shows("history", "plan rolled back by a user")
        page.shows("plan", "restores", "version 2")
        until(lambda: HISTORY.read(job)[-1].version == 2 and HISTORY.read(job)[-1].what == "adopted")
        page.shows("ranks", "4 (0–3)", "4 (4–7)")
        assert {url.partition("?")[0] for url in requests(browser) if not url.startswith("data:")} <= {
            *(address + path for path in ("", "live.css", "live.js", "jobs/1", "jobs/1/events")),
            *(f"{address}jobs/1/{verb}" for verb in ("search", "accept", "roll-back")),
        }
        said = [entry["message"] for entry in browser.get_log("browser")]
        assert [message for message in said if "net::ERR_" not in message] == []
        # A stream that is open does not keep it.
        server.terminate()
        server.wait(timeout=30)
    # A job may be quicker to adopt a plan than the server to write down who wanted it.
    events = [event.what for event in HISTORY.read(job)]
    assert [events.count(what) for what in ("started", "accepted", "rolled_back", "adopted")] == [1, 1, 1, 2]


def test_a_token_grants_access_and_is_removed_from_the_address(browser, tmp_path):
    run = live.running(tmp_path / "run")
    with serving(run, live.running(tmp_path / "other"), token="a-token-that-is-long") as (_, plain):
        address = f"{plain}?token=a-token-that-is-long"
        page = Page(browser, plain)
        assert "A token is needed" in browser.page_source
        page = Page(browser, address)
        assert browser.current_url == plain
        page.shows("jobs", "other")
        browser.find_element("link text", "run").click()
        page.shows("link", "live")
        page.press("reject")
        page.shows("history", "plan rejected by a user")
        assert browser.get_log("browser") == []


def test_the_page_supports_small_screens_dark_mode_and_keyboards(browser, tmp_path):
    run = live.running(tmp_path / "run")
    live.adopted(run)
    (run / "plan.json").write_text("{" + "torn" * 200)
    ask, grounds = browser.execute_script, set()
    with serving(run) as (_, address):
        page = Page(browser, address)
        page.shows("problems", "plan.json: is not a plan")
        for scheme, width in (("light", 360), ("dark", 800)):
            with emulated(browser, scheme, width):
                assert ask("return document.documentElement.scrollWidth") <= width
                cells = "[...document.querySelectorAll('#history td, #ranks td')]"
                ends = ask(f"return {cells}.map(at => at.getBoundingClientRect().right)")
                assert max(ends) <= width
                ground = ask("return getComputedStyle(document.body).backgroundColor")
                assert ask("return getComputedStyle(document.querySelector('h1')).color") != ground
                grounds.add(ground)
        assert len(grounds) == 2
        assert os.environ.get("ESPROF_AXE") is None or serious(browser) == {}
        browser.find_element("css selector", ".plot").send_keys("\ue012")  # The left arrow.
        assert page.text("steps").rstrip().endswith("step 78: 25.0 ms")
        # New steps arrive, and the selected step stays selected.
        live.write_steps(run, [live.live_step(80 + at, 25_000.0, (3, 1), version=1) for at in range(5)])
        WebDriverWait(browser, WITHIN_S).until(lambda _: page.next_step() == 84)
        assert page.text("steps").rstrip().endswith("step 78: 25.0 ms")
        assert ask("return document.activeElement.className") == "plot"


@contextmanager
def emulated(browser, scheme, width):
    """Emulate a screen of this width and the preferred colour scheme."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_full_disk_is_reported_on_the_page(browser, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        run = live.running(disk / "run")
        with serving(run) as (_, address):
            page = Page(browser, address)
            fill(run / "filler")
            page.press("accept")
            page.shows("message", "plan.json: cannot be written: No space left on device")
            assert not [file.name for file in run.iterdir() if "plan" in file.name]
            (run / "filler").unlink()
            page.press("accept")
            page.shows("plan", "sent", "Waiting for the job")
            assert read_plan(run / "plan.json").id == "plan-1"
    finally:
        subprocess.run(["umount", disk], check=True)
