"""ESP101 to ESP110: each cause of waits for input data on a job that has it, and on one that nearly has."""

import numpy as np
import pytest

from esprof.analyzers.finding import Finding
from esprof.analyzers.findings.data.rank_waits import Burst, burst_of
from tests.cases.waiting import input_findings, waiting_job, waiting_rank

N = 40
SLOW = [50.0] * N
"""Batches that take longer than a step of 20 ms."""

IRREGULAR = (5, 14, 21, 32, 38)


def found(took_ms=SLOW, **more) -> Finding:
    """The only finding on input data of a job of one rank."""
    (one,) = input_findings(waiting_job(waiting_rank(took_ms, **more)))
    return one


def now_and_then(usual: float, slow: float, at=IRREGULAR) -> list[float]:
    return [slow if k in at else usual for k in range(N)]


def test_a_wait_whose_cause_was_not_recorded_is_not_explained():
    """The worker is blocked, but by what?"""
    one = found()
    assert (one.id, one.title) == ("ESP101", "Rank 0 waits 30.0 ms a step for input data")
    assert "num_workers=3 (now 1)" in one.advice
    assert one.what_if == "rank0.data=0"


@pytest.mark.parametrize(
    ("more", "id"),
    [
        ({"missed": [1.0] * N}, "ESP102"),
        ({"missed": [0.0] * N}, "ESP101"),  # Blocked by something else: all bytes came from memory.
        ({"missed": [1.0] * N, "ran": 0.6}, "ESP101"),  # Blocked for less than half of the time.
        ({"parts": {"read": (0.8, 0.1)}}, "ESP102"),
        ({"parts": {"wait": (0.8, 0.1)}}, "ESP101"),
    ],
)
def test_storage(more, id):
    one = found(**more)
    assert one.id == id
    if id == "ESP102":
        assert one.title.endswith(": batches wait for storage")
        assert one.what_if == "rank0.storage=2x"
        assert "num_workers=3 (now 1)" in one.advice


@pytest.mark.parametrize(("later", "batches", "id"), [(0.8, 10, "ESP103"), (0.3, 10, "ESP102"), (0.8, 15, "ESP102")])
def test_the_page_cache_thrashes_if_complete_epochs_read_again(later, batches, id):
    """In the last case the first pass ended before it had read all data."""
    rows, stages, lengths = waiting_rank(SLOW, missed=[1.0] * 10 + [later] * 30, of_pass=10)
    (one,) = input_findings(waiting_job((rows, [row | {"batches": batches} for row in stages], lengths)))
    assert one.id == id
    if id == "ESP103":
        # A page cache with 20 % hits must hold 56 % of the data.
        assert one.what_if == "rank0.cache=0.56"
        assert one.evidence["read_again"].value == pytest.approx(0.8)
        assert "80 % of the 9.5 MiB of an epoch" in one.advice


@pytest.mark.parametrize(
    ("parts", "id", "what_if"),
    [
        ({"decode": (0.7, 0.7)}, "ESP104", "rank0.decode=2x"),
        ({"decode": (0.3, 0.3), "transform": (0.4, 0.4)}, "ESP104", "rank0.loader.workers=3"),
        ({"decode": (0.7, 0.3)}, "ESP101", "rank0.data=0"),  # Its time off the CPU is no decoding.
        ({}, "ESP101", "rank0.data=0"),
    ],
)
def test_decoding_and_transforms(parts, id, what_if):
    one = found(ran=0.9, parts=parts)
    assert (one.id, one.what_if) == (id, what_if)


@pytest.mark.parametrize(("starved", "id"), [(0.4, "ESP105"), (0.2, "ESP104")])
def test_oversubscribed_cpus(starved, id):
    one = found(ran=0.6, starved=starved, parts={"decode": (0.6, 0.6)})
    assert one.id == id
    assert ("more workers would not help" in one.advice) == (id == "ESP105")


@pytest.mark.parametrize(("starved", "id"), [(0.4, "ESP105"), (0.2, "ESP104")])
@pytest.mark.parametrize("cpus", [1, 8])
def test_a_rank_that_makes_its_batches_is_told_to_use_workers_if_there_are_cpus_for_them(cpus, starved, id):
    """While the rest of a step is computed, the batches need 1.5 CPUs."""
    rank = waiting_rank(SLOW, workers=0, ran=0.6, starved=starved, parts={"decode": (0.6, 0.6)})
    (one,) = input_findings(waiting_job(rank, cpus={0: tuple(range(cpus))}))
    assert one.id == id
    assert ("Set num_workers" in one.advice) == (cpus == 8)
    assert one.advice.count("more CPUs than there are") == (cpus == 1)
    assert "more workers" not in one.advice.lower()


@pytest.mark.parametrize(("share", "id"), [(0.6, "ESP106"), (0.4, "ESP101")])
def test_collation(share, id):
    one = found(ran=0.9, parts={"collate": (share, share)})
    assert one.id == id
    if id == "ESP106":
        assert one.title.endswith(": collating takes the time")
        assert one.what_if == "rank0.loader.workers=3"


def test_passing_and_pinning():
    """A batch of 30 ms is there 40 ms later: the rank waits for 50 ms of that, mostly after its making."""
    passed, pinned = (found([30.0] * N, prefetch=1, passed_ms=40, is_pinned=of) for of in (False, True))
    assert (passed.id, pinned.id) == ("ESP106", "ESP107")
    assert passed.title.endswith(": passing batches to the rank takes the time")
    assert pinned.is_bound
    assert found([90.0] * N, prefetch=1, passed_ms=10, is_pinned=True).id == "ESP101"


@pytest.mark.parametrize(("ready_ms", "id"), [(10, "ESP106"), (20, "ESP101")])
def test_a_training_thread_without_a_cpu_is_late_to_take_a_batch(ready_ms, id):
    rank = waiting_rank([30.0] * N, prefetch=1, passed_ms=40)
    assert [one.id for one in input_findings(waiting_job(rank, ready_ms=ready_ms))] == [id]


def test_pinning_by_the_rank_itself():
    assert found(workers=0, ran=0.9, parts={"pinning of a batch": (0.7, 0.6)}).id == "ESP107"


@pytest.mark.parametrize(("in_order", "id"), [(True, "ESP108"), (None, "ESP108"), (False, "ESP109")])
def test_a_batch_that_holds_up_others(in_order, id):
    """Three workers are idle half of the time; one batch in eight is late. More batches ahead would hide it, too."""
    one = found(now_and_then(20, 150), workers=3, prefetch=1, in_order=in_order)
    assert one.id == id


@pytest.mark.parametrize(("usual", "id"), [(10, "ESP109"), (30, "ESP101")])
def test_too_little_prefetch(usual, id):
    """A single worker is never overtaken. Batches of 30 ms are too slow for steps of 20 ms, however many are made ahead."""
    one = found(now_and_then(usual, 65), prefetch=1)
    assert one.id == id
    if id == "ESP109":
        assert one.what_if == "rank0.loader.prefetch=4"
        assert "(1 now)" in one.advice


@pytest.mark.parametrize(("at", "id"), [(range(5, N, 6), "ESP110"), (IRREGULAR, "ESP109")])
def test_bursts(at, id):
    one = found(now_and_then(10, 65, at), prefetch=1)
    assert one.id == id
    if id == "ESP110":
        assert one.title.endswith(": one batch in 6 takes 65.0 ms instead of 10.0 ms")


def test_slow_batches_that_are_not_what_is_waited_for_are_no_burst():
    assert found(now_and_then(60, 125, range(5, N, 12))).id == "ESP101"


def test_an_interval_needs_several_slow_batches_that_are_not_in_a_row():
    took = np.full(40, 10.0)
    assert burst_of(took) is None
    took[[8, 16]] = 50
    assert burst_of(took) is None
    took[[24, 32]] = 50
    assert burst_of(took) == Burst(every=8, slow_ns=50, usual_ns=10)
    took[[5, 19, 20]] = 21
    assert burst_of(took) == Burst(every=8, slow_ns=50, usual_ns=10)
    took[9:12] = 50
    assert burst_of(took) is None


@pytest.mark.parametrize("took", [19.0, 5.0])
def test_batches_that_are_ready_when_the_rank_asks_are_no_finding(took):
    """The rank asks late: a batch waits for it, and not the other way round."""
    assert input_findings(waiting_job(waiting_rank([took] * N, missed=[1.0] * N))) == []


def test_without_workers_the_cause_is_named_and_workers_are_the_first_advice():
    one = found(workers=0, ran=0.9, parts={"decode": (0.7, 0.7)})
    assert (one.id, one.what_if) == ("ESP104", "rank0.data=0")
    assert one.advice.startswith("The training process makes each batch itself, in 50.0 ms")
    assert "Use a faster decoder" in one.advice


def test_ranks_that_wait_for_different_causes_have_none_in_common():
    stored, decoded = waiting_rank(SLOW, missed=[1.0] * N), waiting_rank(SLOW, ran=0.9, parts={"decode": (0.7, 0.7)})
    assert [one.id for one in input_findings(waiting_job(stored, stored))] == ["ESP102"]
    assert [one.id for one in input_findings(waiting_job(stored, decoded))] == ["ESP101"]


@pytest.mark.parametrize(("start_up_ms", "first_ms", "ids"), [(100, 5, []), (0, 105, ["ESP110"])])
def test_starts_of_workers_are_left_to_the_whole_run(start_up_ms, first_ms, ids):
    """Steps of 20 ms. In each epoch of eight, the first batch is there after 105 ms: of its start, or of its making."""
    took = [first_ms if k % 8 == 0 else 5.0 for k in range(N)]
    run = waiting_job(waiting_rank(took, prefetch=1, of_pass=8, start_up_ms=start_up_ms))
    assert [one.id for one in input_findings(run)] == ids
