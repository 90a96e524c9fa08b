"""A job that torch.compile compiles again in two of its steps, recorded by torch.profiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from esprof import load
from esprof.analyzers import diagnose

pytestmark = pytest.mark.integration

JOB = Path(__file__).parent / "jobs" / "compiled.py"


def test_recompilations_are_found_in_the_steps_that_have_them(tmp_path):
    trace = tmp_path / "compiled.json"
    subprocess.run([sys.executable, JOB, trace], check=True, capture_output=True, timeout=300)
    (finding,) = [one for one in diagnose(load(trace)).findings if one.id == "ESP409"]
    assert finding.evidence["in_steps"].value == "4, 6"
    assert finding.evidence["frames_compiled"].value == {"0": 4}
    assert finding.evidence["graph_breaks_per_step"].value == 1
    assert finding.title.endswith("frames 0–1 again")
    # Steps without a compilation take a small part of the two with one.
    assert finding.saving_pct > 30
