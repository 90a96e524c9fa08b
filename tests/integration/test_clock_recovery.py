"""Clocks of real traces and of a recorded job, made wrong by known amounts, and found again."""

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from esprof import Run, load
from esprof.core.types import NS_PER_MS, NS_PER_S, NS_PER_US
from esprof.replay.replayed import Replayed, answer
from esprof.run.clocks.by_collectives import MatchedCalls, align_hosts
from esprof.run.schema import Table
from tests.cases.record import record, torchrun

pytestmark = pytest.mark.integration

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
SETS = {
    "megatron-tp8": 10,
    **{
        f"torchrec-4xv100/{name}": 40
        for name in ("sleep_after_backward", "long_a2a_1", "long_a2a_3", "long_a2a_5", "long_a2a_5_qcomm")
    },
}
"""Name -> how far apart its GPU clocks may be, in microseconds: all were recorded on one host."""


@cache
def trace(name):
    if not (TRACES / name).exists():
        pytest.skip(f"no real traces at {TRACES}")
    return load(TRACES / name)


def skewed(run, show):
    """`run` with each rank on a host of its own; `show(rank, times_ns)` is what its clock shows."""

    def read(name, rank):
        table = {
            "events": run.events,
            "steps": run.steps,
            "stages": run.stages,
            "stacks": run.stacks,
            "samples": run.samples,
            "allocations": run.allocations,
        }[name](rank).arrow
        if "start_ns" not in table.column_names:
            return Table(table)
        starts = np.array(table["start_ns"], np.int64)
        times = {"start_ns": show(rank, starts)}
        if "end_ns" in table.column_names:
            times["end_ns"] = show(rank, np.array(table["end_ns"], np.int64))
        else:
            times["dur_ns"] = show(rank, starts + np.array(table["dur_ns"], np.int64)) - times["start_ns"]
        for column, values in times.items():
            table = table.set_column(table.column_names.index(column), column, pa.array(values))
        return Table(table)

    ranks = tuple(msgspec.structs.replace(meta, host=f"node{meta.rank}") for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=ranks), read)


def calls_of(run):
    """The collectives that all ranks share: by kind of collective and step, counted from the end of the step."""
    found = defaultdict(dict)
    for rank in run.ranks:
        rows = run.events(rank).where(run.events(rank).is_kind("collective"))
        starts, seen = rows.ints("start_ns"), Counter()
        ends, steps, words = starts + rows.ints("dur_ns"), rows.ints("step").tolist(), rows.texts("collective")
        for row in reversed(range(len(rows))):
            kind = (words[row], steps[row])
            found[*kind, seen[kind]][rank] = (starts[row], ends[row])
            seen[kind] += 1
    whole = [calls for calls in found.values() if len(calls) == len(run.ranks)]
    rows = [(rank, number, *span) for number, calls in enumerate(whole) for rank, span in calls.items()]
    return MatchedCalls(*np.array(rows, np.int64).T)


def clocks_of(run):
    metas = {rank: run.rank(rank) for rank in run.ranks}
    hosts = {rank: meta.host for rank, meta in metas.items()}
    return align_hosts(calls_of(run), hosts, {rank: meta.clock_residual_ns for rank, meta in metas.items()})


def offsets(clocks):
    return np.array([clock.offset_ns for clock in clocks.hosts])


def injected(run, seed=0):
    ahead = np.random.default_rng(seed).integers(-50 * NS_PER_MS, 50 * NS_PER_MS, len(run.ranks))
    return ahead, skewed(run, lambda rank, times: times + ahead[run.ranks.index(rank)])


@pytest.mark.parametrize("name", SETS)
def test_offsets_of_up_to_50_ms_are_recovered(name):
    run = trace(name)
    ahead, wrong = injected(run)
    before, after = offsets(clocks_of(skewed(run, lambda rank, times: times))), offsets(clocks_of(wrong))
    moved = after - before - ahead
    assert np.ptp(moved) <= NS_PER_US
    off = after - ahead
    assert np.abs(off - np.median(off)).max() <= SETS[name] * NS_PER_US


def ended_too_soon(calls):
    """Number of calls that ended before their last peer arrived."""
    return np.count_nonzero(calls.after_all_ns < 0)


@pytest.mark.parametrize("name", SETS)
def test_only_wrong_clocks_give_negative_communication_times(name):
    _, wrong = injected(trace(name))
    calls = calls_of(wrong)
    assert ended_too_soon(calls) > len(calls.rank) / 4
    assert ended_too_soon(calls.on(clocks_of(wrong))) <= 1


@pytest.mark.parametrize("name", SETS)
def test_the_replayed_step_stays_the_same(name):
    run = trace(name)
    _, wrong = injected(run)
    plain, aligned = (answer(Replayed.of(some)) for some in (run, wrong))
    for before, after in zip(plain.steps, aligned.steps, strict=True):
        assert after.replayed_us == pytest.approx(before.replayed_us, rel=1e-3)
        assert after.measured_us == pytest.approx(before.measured_us, rel=1e-3)


@pytest.fixture(scope="module")
def long_recording(tmp_path_factory):
    """Two workers on this machine, recorded for more than ten seconds."""
    out = tmp_path_factory.mktemp("long") / "run"
    ended = record(out, torchrun("rendezvous.py", 110, 0.01), skip=2, warmup=1, steps=104, stack_steps=0)
    assert ended.code == 0, ended.stderr
    return ended.run


@pytest.mark.soak
def test_a_drift_is_found_in_a_recording_of_ten_seconds(long_recording):
    calls = calls_of(long_recording)
    assert np.ptp(calls.end_ns) >= 10 * NS_PER_S
    begin = int(calls.start_ns.min())

    def gaining(rank, times):
        return times + 3 * NS_PER_MS + np.rint((times - begin) * 20e-6).astype(np.int64) if rank else times

    plain = clocks_of(skewed(long_recording, lambda rank, times: times))
    wrong = skewed(long_recording, gaining)
    found = clocks_of(wrong)
    before, after = (clocks.hosts[1].drift_ppm - clocks.hosts[0].drift_ppm for clocks in (plain, found))
    # On one machine there is none. What is seen of one is how irregularly two workers leave their collectives.
    assert after - before == pytest.approx(20, abs=0.5)
    aligned = calls_of(wrong).on(found).end_ns - calls.end_ns
    moved = aligned[calls.rank == 1] - aligned[calls.rank == 0]
    assert np.ptp(moved) <= (abs(after - 20) + 0.1) * 1e-6 * np.ptp(calls.end_ns)
