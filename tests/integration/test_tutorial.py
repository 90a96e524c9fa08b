"""The commands of docs/tutorial.md, run in order: they find the problem that the page names, and the fix removes it."""

import re

import pytest

from docs.tutorial import BLOCK, PAGE, command_blocks, outputs, shortened
from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.finding import CPU_CONTENTION
from esprof.replay.replayed import Replayed

pytestmark = pytest.mark.integration


TRIES = 3


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """The folder of the job after the last command, and what each block of commands printed.

    Runs that esprof calls too noisy to predict or to compare are recorded again, as it advises.
    """
    for _ in range(TRIES):
        folder = tmp_path_factory.mktemp("tutorial")
        printed = dict(zip(command_blocks(), outputs(command_blocks(), folder), strict=True))
        if not is_disturbed(folder / "my-job", printed.values()):
            break
    return folder / "my-job", printed


def is_disturbed(folder, printed):
    """Whether esprof declines to predict a run in the folder, or to decide a check."""
    replays = [Replayed.of(load(folder / run)).pricer for run in ("before", "after")]
    return any(pricer.too_far_off for pricer in replays) or any("inconclusive" in output for output in printed)


def test_the_findings_that_the_page_names_come_first(tutorial):
    folder, _ = tutorial
    named = set(re.findall(r"ESP\d{3}", BLOCK.sub("", PAGE.read_text())))
    found = [finding.id for finding in diagnose(load(folder / "before")).findings if finding.id != CPU_CONTENTION]
    assert set(found[: len(named)]) == named == {"ESP101"}


def test_the_fix_removes_most_of_the_wait_for_input_data(tutorial):
    folder, printed = tutorial
    before, after = (
        sum(finding.saving_us for finding in diagnose(load(folder / run)).findings if finding.id.startswith("ESP1"))
        for run in ("before", "after")
    )
    assert after < before / 2
    (checked,) = (output for commands, output in printed.items() if "--baseline before" in commands)
    assert "step_time median" in checked
    assert "better than the baseline" in checked
    assert (folder / "main.json").exists()


def test_output_is_shortened_like_the_page():
    assert shortened("a\n\nb\n\nc\n\nd\n", "x\n\n…\n\ny\n") == "a\n\n…\n\nd"
    assert shortened("a\n\nb\n\nc\n", "x\n\n…\n") == "a\n\n…"
    assert shortened("a\n\nb\n", "x\n") == "a\n\nb"
