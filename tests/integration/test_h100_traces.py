"""Small traces of one H100: jobs of `benchmarks.gpu` and single calls of attention, each with what is known of it."""

import gzip
import json
import re
from pathlib import Path

import pytest

from esprof.analyzers import diagnose
from esprof.replay import Replayed
from esprof.run.load import load
from tests.cases.command_line import esprof

pytestmark = pytest.mark.integration

TRACES = Path(__file__).parent / "data" / "h100"
JOBS = ("train.json.gz", "streams.json.gz", "graphed.json.gz", "ranks")
ATTENTION = {"flash": "FlashAttention 2", "efficient": "memory-efficient (CUTLASS)", "cudnn": "cuDNN", "math": "math"}


@pytest.mark.parametrize("name", JOBS)
def test_replay_explains_the_steps_without_residuals(name):
    replayed = Replayed.of(load(TRACES / name))
    assert abs(replayed.pricer.error.strict) < 0.01
    assert replayed.pricer.too_far_off is None


def test_a_step_of_small_kernels_waits_for_launches():
    run = load(TRACES / "train.json.gz")
    first, *_ = diagnose(run).findings
    assert (first.id, first.is_bound) == ("ESP408", True)
    assert 0.5 < 1e3 * first.saving_us / Replayed.of(run).pricer.step_ns < 0.7


def test_a_captured_graph_is_no_storm_of_small_kernels():
    assert "ESP408" not in {one.id for one in diagnose(load(TRACES / "graphed.json.gz")).findings}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_implementation_of_attention_is_named_with_its_time(name):
    """Its time is that of the kernels launched in operations of attention, by a count of its own from the trace."""
    file = TRACES / f"{name}_attention.json.gz"
    rows = [row for row in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] if row.get("ph") == "X"]
    answer = json.loads(esprof("ops", file, "--json").stdout)
    within = spans(
        rows, lambda one: re.fullmatch(r"aten::_(scaled_dot_product|flash|efficient|cudnn)\w*attention\w*", one)
    )
    steps = spans(rows, lambda one: one in {f"ProfilerStep#{step}" for step in answer["steps"]})
    launches = {
        row["args"]["correlation"]: row["ts"] for row in rows if row.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    kernels = [(launches[row["args"]["correlation"]], row["dur"]) for row in rows if row.get("cat") == "kernel"]
    took = sum(dur for at, dur in kernels if is_in(at, within) and is_in(at, steps)) / len(answer["steps"])
    (one,) = answer["attention"]
    assert one["implementation"] == ATTENTION[name]
    assert one["us"] == pytest.approx(took, rel=0.02)


def spans(rows, wanted) -> list[tuple[float, float]]:
    """Begin and end of the operations and steps with a wanted name, µs."""
    found = [row for row in rows if row.get("cat") in ("cpu_op", "user_annotation") and wanted(row["name"])]
    return [(row["ts"], row["ts"] + row["dur"]) for row in found]


def is_in(moment, ranges) -> bool:
    return any(begin <= moment < end for begin, end in ranges)
