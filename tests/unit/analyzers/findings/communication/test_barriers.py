"""ESP307 and `barriers=0`: barriers within steps."""

import pytest
from msgspec.structs import replace

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import gloo, op, run_of, step

MS, STEP = 1_000.0, 50_000.0


def barrier(launched, end):
    """A barrier of 1 ms that the main thread waits for."""
    call, work = gloo(launched, end - MS, end)
    return [
        replace(call, name="c10d::barrier", dur=end - launched, args=None),
        replace(work, name="gloo:barrier", args=None),
    ]


def rows(rank, count):
    """Six steps of 50 ms: so many blocks of 8 ms and of 4 ms, which one rank or the other needs longer for, by turns, each
    with a barrier behind; then an all-reduce."""
    found = []
    for n in range(6):
        at = STEP * n
        found.append(step(n, at, at + STEP))
        for block in range(count):
            took = 8 if block % 2 == rank else 4
            found += [op("aten::mm", at, took * MS), *barrier(at + took * MS, at + 9 * MS)]
            at += 9 * MS
        end = STEP * (n + 1)
        found += [op("aten::add", at, end - 5 * MS - at), *gloo(end - 5 * MS, end - 4.9 * MS, end - MS)]
        found.append(op("aten::mul", end - MS, MS))
    return found


def job(count):
    return run_of({rank: rows(rank, count) for rank in range(2)})


def found(run):
    return next((one for one in diagnose(run).findings if one.id == "ESP307"), None)


def test_barriers_at_which_ranks_wait_by_turns_are_named_and_priced():
    finding = found(job(4))
    assert finding.title == "4 barriers a step make ranks wait for each other"
    # Each rank computes for 2 x 8 and 2 x 4 ms in 4 x 9 ms.
    assert finding.saving_us == pytest.approx(12 * MS, rel=0.05)
    assert finding.saving_low_us > 0
    assert finding.evidence["barriers_per_step_and_rank"].value == 4
    assert finding.evidence["exposed"].of(0) == pytest.approx(4 * MS * 1_000, rel=0.05)


def test_one_barrier_a_step_is_none_too_many():
    assert found(job(1)) is None


def test_a_job_without_barriers_declines():
    run = job(0)
    (answer,) = what_if(run, build(run), ["barriers=0"])
    assert answer.reason == "no barrier was recorded in these steps"
