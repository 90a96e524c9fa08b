"""The first five minutes of a new user, as README tells them: demo, record, diagnose, what-if, page, and the check in CI."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases.browser import chromium, requests

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
USE_IT = re.compile(r"^## Use it\n+```sh\n(?P<commands>.*?)```", re.DOTALL | re.MULTILINE)


class Terminal:
    """A shell in a folder of its own, with esprof installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | own

    def __call__(self, line: str, code: int = 0) -> str:
        """What a command prints, which ends with `code`."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, f"{line}\n{done.stdout}"
        return done.stdout

    def edit(self, old: str, new: str) -> None:
        """Replace `old` in train.py."""
        script = self.folder / "train.py"
        text = script.read_text()
        assert old in text
        script.write_text(text.replace(old, new))


def follow(at: Terminal, said: str) -> None:
    """Run the command that a verdict ends with: it answers the what-if of the first finding, or explains it."""
    (line,) = re.findall(r"^Next +(esprof .*)$", said, re.MULTILINE)
    if " RUN " not in line:  # As where a busy machine hides the fault.
        assert re.search(rf"^{re.escape(line.split()[-1])} ", at(line), re.MULTILINE)


def test_the_first_five_minutes(tmp_path, capsys):
    started, at = time.monotonic(), Terminal(tmp_path)
    (tmp_path / "train.py").write_text((ROOT / "examples" / "tutorial" / "train.py").read_text())
    readme = USE_IT.search((ROOT / "README.md").read_text())["commands"].splitlines()
    record, diagnose, replay, report = (re.sub(r" +#.*", "", line) for line in readme)

    said = at("esprof demo")
    assert "the fault adds" in said
    assert "Wrote the report to esprof-demo/report.html" in said
    follow(at, said)

    said = at(record.replace("--nproc-per-node 8", "--nproc-per-node 2"))
    assert re.search(r"^esprof: recording steps \d+ to \d+ of the job into my-run$", said, re.MULTILINE)
    assert re.search(r"^esprof: recorded ranks 0–1, steps .*overhead.*, into my-run$", said, re.MULTILINE)
    assert re.search(r"waits? (up to )?[\d.]+ ms a step for input data", said)
    follow(at, said)
    title = re.search(r"^ 1  ESP\d{3} (.*)$", at(diagnose), re.MULTILINE)[1]
    said = at(replay)
    assert re.search(r"^network=2x +[\d.]+ ms", said, re.MULTILINE)
    assert re.search(r"^straggler=fix +[\d.]+ ms", said, re.MULTILINE)
    at(report)
    assert_page_shows(tmp_path / "my-run.html", title, tmp_path / "profile")

    at("esprof check my-run --save-baseline main.json")
    at.edit("time.sleep(0.002)", "time.sleep(0.010)")
    at("esprof record -q -o slow -- torchrun --nproc-per-node 2 train.py")
    said = at("esprof check slow --baseline main.json --format github", code=3)
    assert said.startswith("::error title=esprof check::step_time median changed by +")
    assert "### esprof check: regressed" in at("esprof check slow --baseline main.json --format markdown", code=3)
    assert re.match(r"A step takes .* more \(", at("esprof compare my-run slow"))

    at.edit("time.sleep(0.010)", "time.sleep(0.002)")
    said = at("esprof again slow")
    assert re.search(r"^A step takes .* less \(", said, re.MULTILINE)
    with capsys.disabled():
        print(f"\nthe first five minutes took {time.monotonic() - started:.0f} s")


def assert_page_shows(page: Path, title: str, profile: Path) -> None:
    """The page opens without a complaint, asks for nothing, and shows the finding and its charts."""
    with chromium(profile) as browser:
        browser.get("about:blank")
        requests(browser)  # Forget those of the browser's own first page.
        browser.get(page.as_uri())
        assert title in browser.find_element("tag name", "body").text
        assert browser.find_elements("css selector", "#timeline-chart .bars .point path")
        assert browser.get_log("browser") == []
        assert {url for url in requests(browser) if not url.startswith("data:")} == {page.as_uri()}
