"""Short forms of the soak and of the fuzzing (`benchmarks.soak`, `benchmarks.fuzz`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.record import environment

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def figures(module, *options):
    """The figures that a benchmark prints, by name, once it has ended with code 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, options)], capture_output=True, text=True, cwd=ROOT, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {figure["name"]: figure for figure in found}


def test_a_job_that_is_killed_planned_stopped_and_misled_has_the_bits_of_one_process():
    events = ("kill=2", "crash=1", "drain=1", "plan=3", "stop=1", "clock=1")
    found = figures("benchmarks.soak", "--forked", "--jobs", "gan", "--steps", 500, "--events", *events)
    assert found["steps_with_other_bits"]["value"] == 0
    assert (
        found["steps_with_other_bits"]["context"] | {"noted": 5, "lost": 0, "last_is_equal": True}
        == (found["steps_with_other_bits"]["context"])
    )
    assert found["events"]["value"] == 9


def test_changed_files_raise_no_foreign_exception(tmp_path):
    found = figures("benchmarks.fuzz", "--inputs", 3_000, "--seed", 7, "--workers", 1, "--keep", tmp_path)
    assert found["inputs"]["value"] >= 2_900
    assert found["faults"]["value"] == 0
