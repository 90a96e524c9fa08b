"""Small traces of one H100: jobs of `benchmarks.gpu` and single calls of attention, each with what is known of it."""

import json
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
def test_the_implementation_of_attention_is_named(name):
    ended = esprof("ops", TRACES / f"{name}_attention.json.gz", "--json")
    first, *_ = json.loads(ended.stdout)["attention"]
    assert first["implementation"] == ATTENTION[name]
