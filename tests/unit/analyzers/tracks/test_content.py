"""What is exported of a run."""

import pytest

from esprof.core.errors import InputError, UsageError
from tests.cases.exported import cpu_run, exported


def by_name(content):
    return {process.name: process for process in content.processes()}


def test_every_rank_is_there_in_every_timeline():
    names = ["job", *(f"rank {rank}{what}" for rank in (0, 1) for what in ("", " replayed", " cpu=2x"))]
    assert list(by_name(exported(cpu_run(), "cpu=2x", "cpu=2x"))) == names


def test_the_job_has_its_steps_and_critical_paths():
    content = exported(cpu_run(), "cpu=2x")
    tracks = {track.name: track.slices for track in by_name(content)["job"].tracks}
    assert list(tracks) == [
        "steps measured", "steps replayed", "critical path replayed", "steps cpu=2x", "critical path cpu=2x",
    ]  # fmt: skip
    length = {name: int((slices.end_ns - slices.start_ns).sum()) for name, slices in tracks.items()}
    assert length["steps measured"] == length["steps replayed"] == 300_000_000
    # The path is over the steady-state steps: all but the first of six.
    assert length["critical path replayed"] == 250_000_000
    assert length["steps cpu=2x"] < length["steps replayed"]
    path = tracks["critical path replayed"]
    assert (path.end_ns[:-1] == path.start_ns[1:]).all()
    assert set(path.args["rank"]) == {0, 1}


def test_the_path_of_one_step_is_that_step():
    content = exported(cpu_run(), step=0)
    path = by_name(content)["job"].tracks[2].slices
    assert int((path.end_ns - path.start_ns).sum()) == 50_000_000


def test_a_step_outside_the_graph_is_refused():
    with pytest.raises(UsageError, match="no step 7"):
        exported(cpu_run(), step=7)


def test_a_scenario_without_evidence_has_no_timeline():
    with pytest.raises(InputError, match=r"rank7.cpu=2x has no timeline: rank 7 is not in this run"):
        exported(cpu_run(), "rank7.cpu=2x")
