"""Memory: peaks by phase, the curves of the report, and ESP502 for ranks near their limit."""

import msgspec
import pytest

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.memory.near_limit import near_limit
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.views.memory_use import MAX_CURVES, MAX_POINTS_OF_A_CURVE, memory_use
from esprof.run.run import RankMeta, Run, RunMeta
from esprof.run.schema import MEMORY, table

GIB = 1 << 30
COLUMNS = ("step", "phase", "at_ns", "allocated", "reserved", "peak_allocated", "rss")


def samples(*rows, begin=0):
    """Rows of (step, phase, allocated, reserved, peak, rss), in GiB, a second apart starting at second `begin`."""
    noted = [
        (step, phase, second * 10**9, *(None if amount is None else round(amount * GIB) for amount in amounts))
        for second, (step, phase, *amounts) in enumerate(rows, begin)
    ]
    return table(dict(zip(COLUMNS, zip(*noted, strict=True), strict=True)), MEMORY)


def cuda(*rows):
    """Rows of (step, phase, allocated, peak)."""
    return samples(*((step, phase, allocated, peak + 1, peak, 3) for step, phase, allocated, peak in rows))


def rss(*amounts, begin=0):
    return samples(*((number, None, None, None, None, amount) for number, amount in enumerate(amounts)), begin=begin)


def run_of(*tables, hosts=("here",), **fields):
    metas = [
        RankMeta(rank=rank, host=hosts[rank % len(hosts)], memory_limit=10 * GIB, **fields)
        for rank in range(len(tables))
    ]
    meta = RunMeta(world_size=len(tables), ranks=tuple(metas))
    return Run(meta, lambda name, rank: tables[rank] if name == "memory" else None)


def test_a_peak_belongs_to_the_phase_in_which_the_allocators_peak_rose():
    held = cuda((4, None, 1, 5), (5, "forward", 4, 5), (5, "backward", 2, 7), (5, "optimizer", 1, 7))
    (rank,) = memory_use(run_of(held)).ranks
    assert (rank.of, rank.peak, rank.reached) == ("cuda", 7 * GIB, "backward of step 5")
    assert (rank.forward, rank.backward, rank.optimizer) == (4 * GIB, 7 * GIB, 1 * GIB)


def test_a_peak_from_before_the_first_sample_has_no_phase():
    (rank,) = memory_use(run_of(cuda((4, None, 1, 5), (5, "forward", 4, 5)))).ranks
    assert (rank.peak, rank.reached) == (5 * GIB, None)


def test_a_peak_that_the_job_reset_was_reached_since():
    held = cuda((4, None, 1, 5), (5, "forward", 2, 3), (5, "backward", 1, 3))
    (rank,) = memory_use(run_of(held)).ranks
    assert (rank.forward, rank.backward, rank.peak) == (3 * GIB, 1 * GIB, 5 * GIB)


def test_a_peak_between_samples_is_taken_from_the_end_of_the_rank():
    run = run_of(rss(1, 2, 1), peak_memory=4 * GIB, peak_memory_of="rss")
    assert memory_use(run).ranks[0].peak == 4 * GIB


def test_a_run_without_samples_has_no_curves():
    assert memory_use(run_of(table({}, MEMORY), peak_memory=GIB, peak_memory_of="rss")) is None


def test_curves_are_bounded_and_contain_the_peak():
    amounts = [1.0] * 5_000
    amounts[3_333] = 9.0
    use = memory_use(run_of(*[rss(*amounts)] * 12, rss(*[8.0] * 9)))
    assert len(use.ranks) == 13
    assert len(use.curves) == MAX_CURVES
    assert use.samples == 12 * 5_000 + 9
    for curve in use.curves:
        assert len(curve.at_s) == len(curve.used) <= MAX_POINTS_OF_A_CURVE
        assert max(curve.used) == 9 * GIB
        assert list(curve.at_s) == sorted(curve.at_s)
        assert curve.reserved == ()


def test_curves_share_a_time_axis_that_starts_with_the_first_rank():
    use = memory_use(run_of(rss(1, 2, 3, begin=40), rss(1, 2, 3, begin=45)))
    assert [curve.at_s for curve in use.curves] == [(0.0, 1.0, 2.0), (5.0, 6.0, 7.0)]


def test_only_the_rank_near_the_limit_of_its_device_is_reported():
    full = cuda((1, None, 1, 1), (2, "forward", 3, 3), (2, "backward", 2, 9.5))
    run = run_of(cuda((1, None, 1, 9)), full)
    (found,) = near_limit(RecordedJob(run))
    assert (found.id, found.ranks, found.scenario) == ("ESP502", (1,), None)
    assert "95 %" in found.title
    assert found.evidence["reached_in"] == by_rank({1: "backward of step 2"})
    assert found.evidence["limit"] == Evidence(10 * GIB, "bytes")


@pytest.mark.parametrize(("hosts", "reported"), [(("here",), [(0, 1)]), (("here", "there"), [])])
def test_ranks_on_one_host_share_its_memory(hosts, reported):
    run = run_of(rss(2, 5), rss(4.4), hosts=hosts)
    assert [found.ranks for found in near_limit(RecordedJob(run))] == reported


def test_nothing_is_reported_without_a_limit():
    full = run_of(rss(9.9))
    (rank,) = full.meta.ranks
    unknown = msgspec.structs.replace(full.meta, ranks=(msgspec.structs.replace(rank, memory_limit=None),))
    assert list(near_limit(RecordedJob(full)))
    assert not list(near_limit(RecordedJob(Run(unknown, lambda name, rank: full.memory(rank)))))
