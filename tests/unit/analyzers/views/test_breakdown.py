"""The breakdown is a partition: compared with a reference that examines every instant, and on synthetic graphs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.views.breakdown import breakdown, partition
from esprof.replay import Replayed
from tests.cases.graph import call, ddp_rank, launched, load_call, nccl_ranks, op, run_of, step
from tests.cases.properties import thorough

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda t: (t[0], t[0] + t[1])), max_size=6)


@thorough(200)
@given(st.lists(INTERVALS, min_size=1, max_size=4), st.integers(0, 30), st.integers(1, 30), st.integers(0, 5))
def test_each_instant_belongs_to_the_first_layer_that_covers_it(layers, begin, length, gap):
    spans = np.array([[begin, begin + length], [begin + length + gap, begin + 2 * length + gap]])
    arrays = [np.array(layer, np.int64).reshape(-1, 2) for layer in layers]
    expected = np.zeros((2, len(layers) + 1), np.int64)
    for row, (first, last) in enumerate(spans):
        for moment in range(first, last):
            owner = next((n for n, layer in enumerate(layers) if any(a <= moment < b for a, b in layer)), len(layers))
            expected[row, owner] += 1
    assert partition(arrays, spans).tolist() == expected.tolist()


def parts_of(run) -> dict[int, dict[str, float]]:
    return {part.rank: {name: getattr(part, name) for name in ACTIVITIES} for part in breakdown(Replayed.of(run))}


def test_a_cpu_job_waits_for_its_late_peer():
    parts = parts_of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    assert parts[0] == {
        "compute": 35_000.0, "exposed_communication": 4_000.0, "copy": 0.0, "wait": 10_000.0,
        "input_stall": 0.0, "host": 1_000.0, "idle": 0.0,
    }  # fmt: skip
    assert parts[1] == {
        "compute": 35_000.0, "exposed_communication": 4_000.0, "copy": 0.0, "wait": 0.0,
        "input_stall": 0.0, "host": 11_000.0, "idle": 0.0,
    }  # fmt: skip


def test_waiting_in_nccl_is_not_compute():
    parts = parts_of(run_of(nccl_ranks()))
    assert parts[0]["wait"] == pytest.approx(300)
    assert parts[1]["wait"] == 0
    assert parts[0]["exposed_communication"] == parts[1]["exposed_communication"] == 50


@pytest.mark.parametrize("worker", [True, False])
def test_an_input_stall_is_the_time_in_the_loader(worker):
    rows = [step(1, 0, 50_000), load_call(0, 30_000, worker=worker), op("train", 30_000, 20_000)]
    assert parts_of(run_of({0: rows}))[0]["input_stall"] == 30_000


def test_the_shares_sum_exactly_to_the_step():
    for run in (run_of({0: ddp_rank(0.0123), 1: ddp_rank(slow=3.14159)}), run_of(nccl_ranks(33.333))):
        for part in breakdown(Replayed.of(run)):
            assert round(sum(getattr(part, name) for name in ACTIVITIES), 3) == part.step_us


def test_a_copy_without_concurrent_compute_is_not_compute():
    rows = [
        step(1, 0, 1_000),
        op("aten::copy_", 0, 60),
        *launched("Memcpy HtoD (Pinned -> Device)", 10, 20, 300, 1),
        *launched("gemm", 40, 220, 200, 2, stream=20),
        call("cudaDeviceSynchronize", 70, 400, 3),
        op("aten::add", 500, 500),
    ]
    (part,) = breakdown(Replayed.of(run_of({0: rows})))
    assert (part.compute, part.copy) == (200, 200)
    assert part.overlap_pct is None


@pytest.mark.parametrize(("computes", "overlap"), [(0, 0), (20, 40), (50, 100)])
def test_overlap_is_the_share_of_communication_with_concurrent_compute(computes, overlap):
    ranks = nccl_ranks()  # The collective of 50 µs starts when rank 1 arrives, at 410 µs.
    if computes:
        for rows in ranks.values():
            rows += launched("gemm", 60, 410, computes, 7, stream=7)
    for part in breakdown(Replayed.of(run_of(ranks))):
        assert part.overlap_pct == pytest.approx(overlap)
