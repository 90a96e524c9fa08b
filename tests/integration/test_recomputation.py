"""A job with activation checkpointing, recorded by torch.profiler."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from esprof import load
from esprof.replay.whatif.graph.recomputation import recompute_ranges

pytestmark = pytest.mark.integration

JOB = Path(__file__).parent / "jobs" / "checkpointed.py"


@pytest.mark.parametrize(("how", "layers"), [("reentrant", 2), ("other", 2), ("none", 0)])
def test_forward_operations_of_the_backward_pass_are_found(tmp_path, how, layers):
    trace = tmp_path / "checkpointed.json"
    subprocess.run([sys.executable, JOB, trace, how], check=True, capture_output=True, timeout=300)
    events = load(trace).events(0)
    ranges = recompute_ranges(events)
    assert len(ranges.tid) == 6 * layers
    names = np.array(events.texts("name"), object)
    start = events.ints("start_ns")
    again = [names[(begin <= start) & (start < end)].tolist() for begin, end in zip(*ranges[1:], strict=True)]
    assert all("aten::gelu" in inside or "aten::layer_norm" in inside for inside in again)
    assert not any("Backward" in name for inside in again for name in inside)
