"""`benchmarks.loaders`: the emulated store, DS-Analyzer's rule, and the table of what came."""

import itertools

import pytest

from benchmarks.loaders.changes import CHANGES, jobs
from benchmarks.loaders.kit import SampleFiles, Settings, Shuffled, made
from benchmarks.loaders.outcome import Measured, Outcome, section, summary_rows
from benchmarks.loaders.predicted import Predicted, min_fpg_ms, predict
from esprof.replay import Replayed
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.loading.batches import batches_of
from tests.cases.loading import loading_job

SETTINGS = {"workers": 1, "prefetch": 2, "device_ms": 15, "store": 1, "cached": 0, "minio": 0, "steps": 96}
SETTINGS |= {"ready": 0, "shared": None, "in_order": True, "slow_ms": 0}


def files(tmp_path, **changed):
    paths = [made(tmp_path / f"{number}.bin", lambda number=number: bytes([number] * 9)) for number in range(8)]
    return SampleFiles(paths, Settings(files=tmp_path, **(SETTINGS | changed)))


def test_a_file_has_its_content_and_is_made_once(tmp_path):
    assert files(tmp_path)[5] == bytes([5] * 9)
    assert made(tmp_path / "5.bin", lambda: b"other").read_bytes() == bytes([5] * 9)
    assert files(tmp_path).total_bytes == 72


@pytest.mark.parametrize(("share", "waits"), [(0, 8), (0.5, 4), (0.75, 2), (1, 0)])
def test_only_files_that_are_not_cached_come_from_the_store(tmp_path, monkeypatch, share, waits):
    slept = []
    monkeypatch.setattr("benchmarks.loaders.kit.time.sleep", slept.append)
    store = files(tmp_path, cached=share, store=4)
    for index in range(8):
        store[index]
    assert slept == pytest.approx([(3e-3 + 9 / 20e6) / 4] * waits)


def test_each_pass_reads_every_file_once_in_another_order():
    taken = list(itertools.islice(Shuffled(None, 8), 24))
    passes = [taken[at : at + 8] for at in (0, 8, 16)]
    assert [sorted(one) for one in passes] == [list(range(8))] * 3
    assert len({tuple(one) for one in passes}) == 3


def test_every_change_has_a_what_if_and_every_job_is_found():
    for change in CHANGES:
        assert parse(change.what_if)
        assert change.options[0] != change.options[1]
    assert {"benchmarks.loaders.jobs.images", "benchmarks.loaders.jobs.recordings"} <= set(jobs())


@pytest.mark.parametrize(
    ("what_if", "step_ms"),
    [("loader.workers=1", 45), ("loader.workers=3", 20), ("storage=9x", 20), ("cache=0.5", 22.5)],
)
def test_min_f_p_g_takes_fetching_and_preparing_to_overlap(what_if, step_ms):
    """A batch is blocked for 45 ms and takes 15 ms of CPU time; a step takes 20 ms beside that."""
    replayed = Replayed.of(loading_job(), max_error_pct=100)
    batches = batches_of(replayed.run, 0, replayed.pricer.steps)
    assert min_fpg_ms(replayed, batches, what_if) == pytest.approx(step_ms, rel=0.01)


def test_a_declined_change_has_a_reason_and_no_step():
    found = predict(loading_job(cpu_ms=60), "storage=2x")
    assert found.step is None
    assert "CPU time" in found.reason


def outcome(predicted=50.0, starved_pct=0.0, is_own=True, after=(40.0, 40.0)):
    return Outcome(
        job="images",
        is_own=is_own,
        change="store ×4",
        what_if="storage=4x",
        predicted=Predicted(
            job_class="cpu",
            now=110.0,
            step=predicted,
            low=None if predicted is None else predicted - 15,
            high=None if predicted is None else predicted + 15,
            reason=None,
            min_fpg=33.0,
            starved_pct=starved_pct,
        ),
        measured=Measured(before=(100.0, 100.0), after=after, pressure_pct=1.0),
    )


def test_a_prediction_is_scaled_to_steps_without_profiler():
    """50 of 110 ms under the profiler are 45.5 of 100 ms without it; 40 ms came."""
    one = outcome()
    assert one.error_pct == pytest.approx(100 * (50 / 1.1 / 40 - 1))
    assert one.min_fpg_error_pct == pytest.approx(100 * (30 / 40 - 1))
    assert one.no_change_error_pct == pytest.approx(150)
    assert one.is_held
    assert not outcome(after=(20.0, 20.0)).is_held


def test_starved_and_declined_changes_are_listed_and_do_not_count():
    (median, worst) = summary_rows([outcome(), outcome(starved_pct=8), outcome(predicted=None)])
    assert (median[1], worst[1]) == ("1 changes", "1 changes")
    text = section([outcome(), outcome(predicted=None)])
    assert "declined" in text
    assert "Declined: 1." in text
    assert list(summary_rows([])) == []
