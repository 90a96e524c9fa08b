"""A profile that JAX 0.11.2 wrote on an H100: eight steps of a small network, each of which waits for its loss.

The sums were computed from the same file by JAX's own reader (`jax.profiler.ProfileData`).
"""

from pathlib import Path

import pytest

from esprof import load
from esprof.replay import answer

pytestmark = pytest.mark.integration

PROFILE = Path(__file__).parent / "data" / "jax.xplane.pb.gz"
NS_BY_STREAM = {14: (304, 17_261_219), 15: (8, 5_039_800), 16: (4, 7_840), 18: (4, 7_744)}
PYTHON_EVENTS = 2197


@pytest.fixture(scope="module")
def run():
    return load(PROFILE)


def test_the_work_of_the_device(run):
    events = run.events(0).to_pandas()
    work = events[events.stream.notna()].groupby("stream").dur_ns.agg(["count", "sum"])
    found = {int(stream): (int(row["count"]), int(row["sum"])) for stream, row in work.iterrows()}
    assert found == NS_BY_STREAM
    assert (run.meta.ranks[0].device, run.warnings) == ("NVIDIA H100 80GB HBM3", ())


def test_the_host(run):
    events = run.events(0).to_pandas()
    main = events[events.thread_role == "main"]
    assert len(main) == PYTHON_EVENTS
    assert (main.name == "cuGraphLaunch").sum() == 8
    assert events[events.kind == "step"].step.tolist() == list(range(8))


def test_its_kernels_have_their_launches(run):
    found = answer(run)
    assert [step.step for step in found.steps] == list(range(1, 8))
    assert found.coverage.kernels_without_launch == 0
    assert found.step_us == pytest.approx(16_500, abs=100)
