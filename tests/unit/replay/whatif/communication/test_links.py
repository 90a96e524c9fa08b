"""Communication between GPUs: link time and latency."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.communication.links import DEFAULT_LATENCY
from esprof.replay.whatif.pricing import what_if
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
