"""ESP501: retries of the caching allocator."""

import pytest

from tests.cases.findings import ungrouped
from tests.cases.graph import call, kernel, op, run_of, step

STEP = 10_000.0


def allocating(*names: str) -> list:
    """Five steps of 10 ms with these calls, 200 µs each, and a kernel."""
    rows = []
    for n in range(5):
        at, number = STEP * n, 100 * n
        rows += [step(n, at, at + STEP), op("aten::empty", at, 2_000), op("aten::mm", at + 2_100, 7_800)]
        rows += [call(name, at + 10 + 210 * m, 200, number + m) for m, name in enumerate(names)]
        rows += [call("cudaLaunchKernel", at + 2_200, 5, number + 50), kernel("gemm", at + 2_210, 7_000, number + 50)]
        rows.append(call("cudaDeviceSynchronize", at + 2_300, 6_950, number + 51))
    return rows


def retries(*names: str):
    (found,) = (one for one in ungrouped(run_of({0: allocating(*names)})) if one.id == "ESP501")
    assert ("memory is full" in found.advice) == ("retries" in found.evidence)
    return found.evidence["retries"].of(0) if "retries" in found.evidence else 0


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (("cudaMalloc", "cudaFree", "cudaFree", "cudaMalloc"), 5),
        (("cudaMalloc", "cudaFree", "cudaMalloc", "cudaFree", "cudaMalloc"), 10),
        (("cudaMalloc", "cudaMalloc"), 0),
        (("cudaFree", "cudaMalloc", "cudaFree"), 0),
        (("cudaMalloc", "cudaLaunchKernel", "cudaFree", "cudaMalloc"), 0),
    ],
)
def test_memory_that_is_freed_and_asked_for_again_was_full(calls, expected):
    assert retries(*calls) == expected
