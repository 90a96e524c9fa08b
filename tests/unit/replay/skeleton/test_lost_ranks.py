"""Ranks that are lost while a large run is answered: they are named, and the answer is that of the others."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import msgspec
import pytest

import esprof
from esprof.analyzers import diagnose, summarize
from esprof.core.errors import InputError
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.replayed import answer
from esprof.replay.skeleton import kept_graphs, large
from esprof.replay.skeleton.large import answered
from esprof.run.files import table_path
from esprof.run.run import RunWarning
from tests.cases.exported import cpu_rank
from tests.cases.graph import run_of
from tests.cases.run_directory import write_run

RANKS, LOST = 3, 1
WHAT_IFS = ("cpu=2x", "straggler=fix", f"rank{LOST}.cpu=2x")


def answer_with_what_ifs(replayed):
    return answer(replayed, WHAT_IFS)


@pytest.fixture(autouse=True)
def _all_large(monkeypatch):
    monkeypatch.setattr(large, "MAX_EVENTS", 0)


@pytest.fixture
def _none_kept(monkeypatch):
    """Each rank is built anew for each answer, as on a host that shares no disk with this one."""
    monkeypatch.setattr(kept_graphs, "BYTES_AN_EVENT", 2**60)


@pytest.fixture
def run(tmp_path):
    made = run_of({rank: cpu_rank(10 if rank == 0 else 0) for rank in range(RANKS)})
    write_run(tmp_path / "run", made.meta, {("events", rank): made.events(rank) for rank in made.ranks})
    return esprof.load(tmp_path / "run")


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


class FailsFor(ThreadPoolExecutor):
    """Tasks of these ranks fail, as on a worker that cannot read their files."""

    def __init__(self, *ranks):
        super().__init__(2)
        self.ranks = ranks

    def submit(self, work, task):
        return super().submit(self.fail if self.rank_of(task) in self.ranks else work, task)

    def rank_of(self, task):
        for name in ("alone", "recorded"):
            task = getattr(task, name, task)
        return task.rank

    def fail(self, task):
        raise OSError("no such disk")


def test_a_rank_that_fails_twice_is_left_out_and_named(run):
    with FailsFor(LOST) as pool:
        found = answered(run, answer, workers=RankWorkers(pool))
    assert found.coverage.missing_ranks == (LOST,)
    (warning,) = (one for one in found.warnings if one.code == "rank-failed")
    assert warning.ranks == (LOST,)
    assert "rank 1 left out" in warning.message
    assert "OSError: no such disk" in warning.message


def test_the_error_is_shown_if_all_ranks_fail(run):
    with FailsFor(*range(RANKS)) as pool, pytest.raises(InputError, match="OSError: no such disk"):
        answered(run, answer, workers=RankWorkers(pool))


def remove(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


def overwrite(file):
    """The footer stays whole, so that the damage shows when the table is read."""
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(200) + whole[204:])


class DamagedAfter:
    """Told of progress, it damages the events of `LOST` once `what` is done for all ranks."""

    def __init__(self, run, what, damage):
        self.file, self.when, self.damage, self.done = (
            table_path(run.path, "events", LOST), f"{what}, rank by rank: {RANKS} done", damage, False
        )  # fmt: skip

    def __call__(self, told):
        if told == self.when and not self.done:
            self.damage(self.file)
            self.done = True


def of_the_others(run, make):
    """What `make` says of the run without the lost rank, in this process."""
    return make(run.without([LOST], RunWarning("rank-failed", "", (LOST,))))


def compared(found):
    """What two answers must have in common: all but the words of warnings, and times of this computer."""
    values = msgspec.to_builtins(found)
    return {name: value for name, value in values.items() if name not in ("warnings", "timing_s", "replay")}


@pytest.mark.slow
@pytest.mark.usefixtures("_none_kept")
@pytest.mark.parametrize("damage", [remove, cut, overwrite])
@pytest.mark.parametrize("what", ["Contracting the ranks", "Reading the work of ranks", "Changing the ranks"])
def test_a_rank_lost_while_a_what_if_is_priced_is_left_out(run, what, damage, processes):
    expected = of_the_others(run, lambda intact: answered(intact, answer_with_what_ifs))
    tell = DamagedAfter(run, what, damage)
    found = answered(run, answer_with_what_ifs, workers=RankWorkers(processes, tell))
    assert tell.done
    if what == "Changing the ranks":  # Nothing is read of the rank from then on.
        assert all(one.answered for one in found.what_if)
        return
    assert [one.ranks for one in found.warnings if one.code == "rank-failed"] == [(LOST,)]
    assert [one.answered for one in found.what_if] == [True, True, False]
    assert found.what_if[-1].reason == f"rank {LOST} is not in this run"
    assert compared(found) == compared(expected)


def test_a_rank_that_was_built_is_not_lost_with_its_files(run):
    expected = answered(run, answer_with_what_ifs)
    tell = DamagedAfter(run, "Building the ranks", remove)
    found = answered(run, answer_with_what_ifs, workers=RankWorkers(tell=tell))
    assert tell.done
    assert compared(found) == compared(expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [diagnose, summarize])
@pytest.mark.parametrize("in_processes", [True, False])
def test_a_rank_lost_while_a_run_is_diagnosed_is_left_out(run, make, in_processes, processes):
    expected = of_the_others(run, make)
    tell = DamagedAfter(run, "Breaking down steps", cut)
    found = make(run, workers=RankWorkers(processes if in_processes else None, tell))
    assert tell.done
    diagnosis = found if make is diagnose else found.diagnosis
    assert [one.ranks for one in diagnosis.warnings if one.code == "rank-failed"] == [(LOST,)]
    of_others = expected if make is diagnose else expected.diagnosis
    assert (diagnosis.findings, diagnosis.verdict) == (of_others.findings, of_others.verdict)
    assert diagnosis.missing_ranks == (LOST,)
