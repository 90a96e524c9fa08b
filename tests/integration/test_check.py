"""`esprof check` as a person and a CI job run it: the installed command, files on disk, exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cases import step_runs
from tests.cases.command_line import esprof
from tests.cases.step_runs import step_table

pytestmark = pytest.mark.integration

ESPROF = Path(sys.executable).parent / "esprof"


def check(*arguments, cwd) -> subprocess.CompletedProcess[str]:
    return esprof("check", *arguments, cwd=cwd)


def write_run(path: Path, *, scale=1.0, seed=0, n=80, phase="plain", **fields) -> Path:
    """Two ranks in lockstep, 100 ms a step with 2 % of noise."""
    steps_ms = 100 * scale * np.exp(0.02 * np.random.default_rng(seed).standard_normal(n))
    return step_runs.write(path, step_table(steps_ms, phase=phase), step_table(steps_ms, phase=phase), **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of the same code (`run`, `same`), of a slower one (`slow`), and a baseline file of `run`."""
    folder = tmp_path_factory.mktemp("check")
    write_run(folder / "run", seed=1)
    write_run(folder / "same", seed=2)
    write_run(folder / "slow", seed=3, scale=1.1)
    saved = check("run", "--save-baseline", "base.json", cwd=folder)
    assert saved.returncode == 0, saved.stderr
    assert "79 plain steps" in saved.stderr
    assert saved.stdout == ""
    return folder


def test_a_baseline_may_go_to_stdout(folder):
    result = check("run", "--save-baseline", "-", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (folder / "base.json").read_text()
    assert not (folder / "-").exists()


@pytest.mark.promise
def test_same_code_passes(folder):
    result = check("same", "--baseline", "base.json", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("check: unchanged\n")


@pytest.mark.promise
def test_slower_code_fails_with_exit_3(folder):
    result = check("slow", "--baseline", "base.json", "--fail-on", "step_time:+5%", "--json", cwd=folder)
    assert result.returncode == 3, result.stderr
    answer = json.loads(result.stdout)
    assert next(iter(answer)) == "schema"
    assert answer["schema"] == "esprof.check/1"
    assert (answer["outcome"], answer["phase"]) == ("regressed", "plain")
    metric, _ = answer["metrics"]
    assert metric["low"] < 10 < metric["high"]


@pytest.mark.promise
def test_the_installed_command_does_the_same(folder):
    command = [ESPROF, "check", "slow", "--baseline", "base.json"]
    assert subprocess.run(command, cwd=folder, timeout=200, check=False).returncode == 3


def test_another_run_may_be_the_baseline(folder):
    assert check("slow", "--baseline", "run", cwd=folder).returncode == 3


def test_inconclusive_never_fails(folder):
    write_run(folder / "short", n=8, scale=1.5)
    result = check("short", "--baseline", "base.json", cwd=folder)
    assert result.returncode == 0
    assert "3 more steps in this run" in result.stdout


def test_junit_goes_to_a_file_and_is_not_overwritten(folder):
    arguments = ("slow", "--baseline", "base.json", "--format", "junit", "-o", "out/check.xml")
    result = check(*arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (3, "")
    assert ElementTree.parse(folder / "out/check.xml").getroot().tag == "testsuites"
    again = check(*arguments, cwd=folder)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert check(*arguments, "--force", cwd=folder).returncode == 3


def test_rules_can_be_joined_by_commas_or_repeated(folder):
    rules = ("--fail-on", "step_time:+5%,step_time:+50ms", "--fail-on", "step_time:+20%")
    result = check("slow", "--baseline", "base.json", *rules, "--format", "markdown", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert [line.split(" | ")[5] for line in result.stdout.splitlines() if line.startswith("| step_time median")] == [
        "+5 %",
        "+50 ms",
        "+20 %",
    ]


def test_other_hardware_is_refused(folder):
    write_run(folder / "v100", device="V100\x1b[31m", versions={"torch": "2.12.0", "python": "3.11.7"})
    result = check("v100", "--baseline", "base.json", cwd=folder)
    assert (result.returncode, result.stdout) == (1, "")
    assert "device of rank 0: NVIDIA H100 in the baseline, V100\\x1b[31m in this run" in result.stderr
    assert "torch version: 2.13.0 in the baseline, 2.12.0 in this run" in result.stderr
    assert "python" not in result.stderr.split("Save a baseline")[0].replace("python version", "")


def test_timed_steps_are_not_compared_with_plain_ones(folder):
    write_run(folder / "timed", phase="timed")
    result = check("timed", "--baseline", "base.json", cwd=folder)
    assert result.returncode == 1
    assert "has no plain steps" in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), (b"{", "not an esprof baseline"), (b"\x1f\x8b\x00", "baseline")]
)
def test_a_broken_baseline_says_file_reason_remedy(folder, content, reason):
    file = folder / "broken.json"
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    result = check("same", "--baseline", "broken.json", cwd=folder)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("esprof: broken.json: ")
    assert reason in result.stderr
    assert "--save-baseline" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("same",), "--save-baseline"),
        (("same", "--baseline", "base.json", "--save-baseline", "other.json"), "exactly one"),
        (("same", "--save-baseline", "other.json", "--json"), "writes only the baseline"),
        (("same", "--save-baseline", "other.json", "-o", "answer.txt"), "writes only the baseline"),
        (("same", "--baseline", "base.json", "--format", "junit", "--json"), "exclude each other"),
        (("same", "--baseline", "base.json", "--fail-on", "speed:+5%"), "Known metrics: step_time"),
        (("same", "--baseline", "base.json", "--alpha", "2"), "--alpha"),
    ],
)
def test_usage_errors_exit_2(folder, arguments, message):
    result = check(*arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_hostile_command_stays_data(folder):
    write_run(folder / "hostile", seed=2, command=("x\n::error::owned", "<script>", "\x1b[31m"))
    result = check("hostile", "--baseline", "base.json", cwd=folder)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert not any(line.startswith("::") for line in result.stdout.splitlines())
