"""Link time of communication, and its latency between GPUs."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.whatif.communication.links import DEFAULT_LATENCY, RecordedLinks, link_share
from esprof.replay.whatif.pricing import what_if
from esprof.run.run import Run
from tests.cases.gloo_buckets import ELEMENTS, MS, gloo_collective
from tests.cases.graph import Row, call, nccl, op, run_of, step

US = 1_000
LATENCY_US = DEFAULT_LATENCY / US


def reducing(collectives: list[tuple[int, float]]) -> list[Row]:
    """All-reduces of so many elements and µs, one after the other; the thread waits for each and continues for 50 µs."""
    rows: list[Row] = []
    now = 0.0
    for number, (elements, took) in enumerate(collectives):
        args = {"collective": "allreduce", "in_elements": elements, "dtype": "Float"}
        rows += [op("aten::mm", now, 50), *nccl(now + 50, now + 60, now + 60 + took, 2 * number + 1, **args)]
        rows.append(call("cudaStreamSynchronize", now + 58, took + 7, 2 * number + 2))
        now += 65 + took
    return [step(1, 0, now + 50), *rows, op("aten::mm", now, 50)]


def saved(collectives: list[tuple[int, float]], spec: str = "network=2x") -> float:
    """By how much a step of two ranks gets shorter, µs."""
    run = run_of({rank: reducing(collectives) for rank in (0, 1)})
    (answer,) = what_if(run, build(run), [spec])
    assert answer.saving_us is not None, answer.reason
    return answer.saving_us


def test_collectives_of_two_sizes_show_their_latency_and_a_faster_link_shortens_the_rest():
    # 30 µs, and 0.01 µs a byte.
    assert saved([(1000, 70), (3000, 150)]) == pytest.approx(40 / 2 + 120 / 2)
    assert saved([(1000, 70), (3000, 150)], "network=0.5x") == pytest.approx(-40 - 120)


def test_collectives_without_latency_are_all_link_time():
    assert saved([(1000, 40), (3000, 120)]) == pytest.approx(160 / 2)


def test_a_collective_that_is_slow_for_its_size_does_not_change_the_latency():
    usual = 3 * [(1000, 70.0), (3000, 150.0)]
    assert saved([*usual, (3000, 1150)]) - saved(usual) == pytest.approx((1150 - 30) / 2)


def test_latency_never_exceeds_the_fastest_collective():
    assert saved([(1000, 90), (3000, 50)]) == pytest.approx((90 - 50) / 2)


@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 1400)], ids=["one size", "about one size"])
def test_collectives_of_one_size_get_the_default_latency(sizes):
    assert saved([(size, 70) for size in sizes]) == pytest.approx((70 - LATENCY_US) / 2 * 2)


def test_a_collective_shorter_than_the_latency_is_all_latency():
    assert saved([(1000, LATENCY_US / 2), (1000, LATENCY_US / 2)]) == 0


def between_cpus(collectives: list[tuple[str, float]], works: bool) -> Run:
    """Two ranks that do one collective of 1 MiB after the other, by kind and ms, and work for 5 ms before each, and for half
    of its time if it `works`."""
    rows, now = [], 0.0
    for number, (word, took) in enumerate(collectives):
        rows.append(op(f"before {number}", now, 5 * MS))
        now += 5 * MS
        rows += gloo_collective(now, now + 40, took * MS, ELEMENTS, word)
        if works:
            rows.append(op(f"during {number}", now + 50, took * MS / 2))
        rows.append(op(f"after {number}", now + 50 + took * MS, 100))
        now += took * MS + 200
    return run_of({rank: [step(1, 0, now), *rows] for rank in (0, 1)})


@pytest.mark.parametrize(("works", "shares"), [(False, {1.0}), (True, {1.0, 0.667})], ids=["waits", "works"])
def test_each_kind_shows_its_own_time_on_the_link_where_ranks_only_wait(works, shares):
    """An all-gather between two ranks carries half of the bytes of an all-reduce, and takes 15 instead of 10 ms here, as
    gloo's does for a rank that is late."""
    dfg = build(between_cpus([("all_reduce", 20.0), ("all_gather", 15.0)] * 8, works))
    found = link_share(dfg, RecordedLinks.of(dfg)).share[dfg.of(Cls.COMMUNICATION)]
    assert {round(one, 3) for one in found.tolist()} == shares
