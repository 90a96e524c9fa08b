"""Gradients of FSDP2 in real jobs over gloo: recorded, priced, advised, and sent as the plan says."""

import pytest

from esprof import load
from esprof.analyzers.advisors.compression.advise import advise_compression
from esprof.core.errors import EsprofError
from esprof.core.plan import CompressionBody, write_plan
from esprof.replay.replayed import Replayed
from tests.cases.compression import part, planned
from tests.cases.record import record, torchrun

pytestmark = pytest.mark.integration

LAYER, HEAD = 256 * 256 + 256, 256 + 2  # Parameters; the rows of the head are filled up for two ranks.
ANY = 1e9
"""Per cent by which replay may be off: how far it is depends on what else the machine does."""


def recorded(out, *how, **options):
    ended = record(out, torchrun("shards.py", *how), skip=3, warmup=1, steps=5, stack_steps=0, shapes=True, **options)
    assert ended.code == 0, ended.stderr
    return load(out)


def advised(run):
    return advise_compression(Replayed.of(run, max_error_pct=ANY))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("shards") / "run", probe=25)


def test_advice_comes_for_its_reduce_scatters(run):
    advice = advised(run)
    assert advice.collective == "reduce_scatter"
    sizes = [one.elements for one in advice.decision]
    assert sizes[1:] == [(LAYER,), (LAYER,)]  # The head's gradient comes first, as large as it is filled up.
    assert len(sizes[0]) == 1
    steps = advice.baselines
    assert steps["no exchange"] <= steps["zero cost"] <= min(steps["now"], steps["bf16"])
    assert advice.value == min(steps["now"], steps["bf16"])
    assert advice.exposed_us == pytest.approx(steps["now"] - steps["no exchange"])
    gain = 1 - advice.value / steps["now"]
    assert (advice.plan is not None) == (gain >= max(0.03, 2 * advice.error_pct / 100))


def test_what_it_sends_was_counted(run):
    sweep = run.probes.find("shards", "bf16", ranks=(0, 1))
    point = next(point for point in sweep.points if point.size == 4 * LAYER)
    assert point.sent == 2 * LAYER // 2  # Half of it, two bytes each, goes to the other rank.
    assert 0 < point.vnmse < 1e-5


def test_none_comes_where_they_are_narrow_already(tmp_path):
    with pytest.raises(EsprofError, match="already send 16-bit floats, so nothing can be saved"):
        advised(recorded(tmp_path / "run", "bf16"))


def test_a_job_with_the_plan_sends_them_so(tmp_path):
    """Its all-to-alls are those that the plan asks for, and nothing is left to advise."""
    plan = tmp_path / "plan.json"
    write_plan(plan, planned(compression=part(CompressionBody(sharded="bf16"))))
    run = recorded(tmp_path / "run", plan)
    names = [name for name in run.events(0).texts("name") if name in ("gloo:all_to_all", "c10d::_reduce_scatter_base_")]
    assert names.count("gloo:all_to_all") == 3 * 5
    assert "c10d::_reduce_scatter_base_" not in names
    with pytest.raises(EsprofError, match="cannot be compressed"):
        advised(run)
