"""ESP503: memory that the allocator has reserved but cannot use."""

import pytest

from esprof.replay.whatif.gradients.buckets import MIB
from esprof.run.run import Run
from esprof.run.schema import MEMORY, table
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, call, launched, op, run_of, step

GIB = 1024 * MIB


def job(reserved: list[int], peak: list[int], *, malloc_us: float = 100.0) -> Run:
    """Six steps of 1,000 µs, each with a cudaMalloc of `malloc_us`, and samples of reserved and allocated memory, bytes."""
    rows = []
    for n in range(6):
        at = n * 1_000.0
        rows += [step(n, at, at + 1_000), op("aten::add", at, 990), *launched("k", at + 10, at + 20, 10, n + 1)]
        if malloc_us:
            rows.append(call("cudaMalloc", at + 100, malloc_us, 900 + n))
    columns = {
        "step": range(len(reserved)), "phase": [None] * len(reserved), "at_ns": [EPOCH_NS + n for n in range(len(reserved))],
        "allocated": [of // 2 for of in peak], "reserved": reserved, "peak_allocated": peak,
    }  # fmt: skip
    run, memory = run_of({0: rows}), table({name: list(of) for name, of in columns.items()}, MEMORY)
    return Run(run.meta, lambda name, rank: memory if name == "memory" else run._table(name, rank))


def of_allocator(run: Run) -> dict:
    return {finding.id: finding for finding in ungrouped(run) if finding.id.startswith("ESP5")}


def test_unused_reserved_memory_is_reported_if_the_allocator_calls_the_driver():
    found = of_allocator(job([8 * GIB, 10 * GIB], [5 * GIB, 6 * GIB]))
    assert set(found) == {"ESP501", "ESP503"}
    assert found["ESP503"].evidence["unused"].of(0) == 4 * GIB
    assert found["ESP503"].evidence["allocator_calls_per_step"].of(0) == 1
    assert found["ESP503"].saving_us == pytest.approx(100, abs=5)
    assert "expandable_segments" in found["ESP503"].advice


def test_there_is_no_price_if_the_calls_cost_no_time():
    (finding,) = of_allocator(job([10 * GIB], [6 * GIB], malloc_us=2.0)).values()
    assert (finding.id, finding.command, finding.severity) == ("ESP503", None, "warning")


def test_a_later_peak_does_not_count_as_use_of_memory_reserved_before():
    found = of_allocator(job([10 * GIB, 9 * GIB], [6 * GIB, 8 * GIB]))
    assert found["ESP503"].evidence["allocated_at_most"].of(0) == 6 * GIB


@pytest.mark.parametrize(
    ("reserved", "peak", "malloc_us"),
    [
        (10 * GIB, 9 * GIB, 100.0),  # rounding
        (600 * MIB, 300 * MIB, 100.0),  # little memory
        (10 * GIB, 6 * GIB, 0.0),  # no calls
        (-1, -1, 100.0),  # unknown
    ],
)
def test_an_allocator_without_fragmentation_is_not_reported(reserved, peak, malloc_us):
    assert "ESP503" not in of_allocator(job([reserved], [peak], malloc_us=malloc_us))


def test_nothing_is_reported_without_memory_samples():
    assert "ESP503" not in of_allocator(job([], []))
