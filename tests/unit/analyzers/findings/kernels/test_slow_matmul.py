"""ESP702: multiplications far below the device's peak."""

import msgspec
import pytest

from esprof.analyzers import diagnose
from esprof.run.probes import Probes, Sweep
from esprof.run.run import Run
from tests.cases.graph import Args, Row, call, launched, op, run_of, step
from tests.cases.probed import points, probes

A100 = "NVIDIA A100-SXM4-80GB"
HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
NARROW = "[[4096, 4096], [4096, 8]]"
"""2 · 4096 · 4096 · 8 = 268 M operations: at 312 T/s they would take 0.86 µs."""


def multiply(shapes: str, at: float, name: str = "aten::mm") -> Row:
    args = Args(dims=msgspec.Raw(shapes.encode()))
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=1, ts=at, dur=20, args=args)


def job(
    shapes: str = NARROW,
    device: str | None = A100,
    kernel: str = HALF,
    took: float = 600,
    name="aten::mm",
    probes: Probes | None = None,
) -> Run:
    """Steps of 1 ms in which one kernel multiplies for `took` us and another one runs for the rest."""
    rows = []
    for number in range(1, 6):
        at = number * 1_000.0
        rows += [step(number, at, at + 1_000), multiply(shapes, at, name)]
        rows += launched(kernel, at + 5, at + 20, took, 3 * number)
        rows += launched("vectorized_elementwise_kernel", at + 30, at + 20 + took, 900 - took, 3 * number + 1)
        rows += [call("cudaDeviceSynchronize", at + 40, 885, 3 * number + 2), op("end", at + 930, 65)]
    return on(device, rows, probes)


def on(device: str | None, rows: list[Row], probes: Probes | None = None) -> Run:
    run = run_of({0: rows})
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table, probes=probes)


def probed(rate: float, memory: float = 2e12) -> Probes:
    """Square products of 16 bits at `rate` operations per second, and copies at `memory` bytes per second."""
    common = {"ranks": (0,), "device": "cuda"}
    products = points([2 * 4096**3], lambda size: 1e9 * size / rate)
    copies = points([1 << 26], lambda size: 2e9 * size / memory)
    return probes(
        Sweep(kind="matmul", name="bfloat16", unit="flop", points=products, **common),
        Sweep(kind="copy", name="memory", unit="bytes", points=copies, **common),
    )


def found(run: Run) -> list:
    return [finding for finding in diagnose(run).findings if finding.id == "ESP702"]


def test_a_narrow_multiplication_is_reported_with_its_sizes_and_share_of_the_peak():
    (finding,) = found(job())
    operations = 2 * 4096 * 4096 * 8
    assert finding.evidence["share_of_peak"].value == pytest.approx(operations / (600e-6 * 312e12), abs=1e-4)
    assert finding.evidence["share_of_gpu_work"].of(0) == pytest.approx(0.667, abs=0.001)
    assert finding.evidence["longest_multiplies"].value == "4096 × 4096 by 4096 × 8"
    assert (finding.evidence["longest_computes_in"].value, finding.confidence) == ("16 bits", "low")
    # Each of 4096² + 2 · 4096 · 8 elements of 2 bytes is moved once, at 2,039 GB/s.
    seconds = 2 * (4096**2 + 2 * 4096 * 8) / 2039e9
    assert finding.evidence["native_share"].value == pytest.approx(seconds / 600e-6, abs=1e-4)
    assert finding.evidence["native_rate_from"].value == "data sheet"
    assert finding.evidence["longest_is_limited_by"].value == "memory"
    assert "this narrow cannot fill" in finding.advice
    assert finding.saving_us == pytest.approx(600, rel=0.03)
    assert "kernel[" in finding.command


def test_with_a_probe_the_price_is_that_of_the_attainable_rate():
    large = "[[2304, 4096], [4096, 1537]]"
    seconds = 2 * 2304 * 4096 * 1537 / 200e12
    (finding,) = found(job(large, took=800, probes=probed(200e12)))
    assert finding.evidence["native_rate_from"].value == "probe"
    assert finding.evidence["native_share"].value == pytest.approx(seconds / 800e-6, abs=1e-4)
    assert finding.evidence["longest_is_limited_by"].value == "alignment"
    assert finding.saving_us == pytest.approx(800 - seconds * 1e6, rel=0.01)


def test_a_last_wave_that_is_not_full_is_named():
    (finding,) = found(job("[[2304, 4096], [4096, 1544]]", took=800, kernel=HALF.replace("128x128", "256x128")))
    assert finding.evidence["longest_is_limited_by"].value == "wave"
    assert finding.evidence["longest_is_full"].of("wave") == pytest.approx(126 / 108 / 2, abs=1e-3)
    assert "fills 58 % of the device's waves" in finding.advice


def test_a_kernel_that_memory_cannot_feed_faster_is_not_reported():
    assert not found(job(took=600, probes=probed(200e12, memory=60e9)))


@pytest.mark.parametrize("outer", ["aten::linear", "aten::matmul"])
def test_multiplications_inside_other_operations_are_found(outer):
    rows = []
    for number in range(1, 6):
        at = number * 1_000.0
        rows += [step(number, at, at + 1_000), op(outer, at, 40), multiply(NARROW, at + 10)]
        rows += launched(HALF, at + 15, at + 30, 600, 3 * number)
        rows += launched("vectorized_elementwise_kernel", at + 50, at + 630, 300, 3 * number + 1)
        rows += [call("cudaDeviceSynchronize", at + 60, 875, 3 * number + 2), op("end", at + 940, 55)]
    (finding,) = found(on(A100, rows))
    assert finding.evidence["longest_multiplies"].value == "4096 × 4096 by 4096 × 8"


def test_sizes_that_do_not_suit_tensor_cores_are_reported():
    (finding,) = found(job("[[1001, 409], [409, 5025]]", took=800, kernel=HALF.replace("bf16", "f16")))
    assert "1008, 5032 and 416" in finding.advice


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ("[[64, 8, 8], [64, 8, 8]]", "aten::bmm"),
        ("[[8], [4096, 4096], [4096, 8], [], []]", "aten::addmm"),
        ("[[64, 8, 8], [64, 8, 8], [64, 8, 8]]", "aten::baddbmm"),
    ],
)
def test_batches_and_biases_are_understood(shapes, name):
    assert found(job(shapes, name=name))


@pytest.mark.parametrize(
    "run",
    [
        job("[[8192, 8192], [8192, 8192]]", took=899),  # above the peak
        job(took=60),  # too little of the work
        job(device="Some GPU"),
        job(device=None),
        job(name="aten::add"),
        job("[[4096, 4096], [512, 8]]"),  # shapes that do not match
        job("[]"),
        job(kernel="ampere_dgemm_64x64_nn"),
    ],
    ids=["fast", "little", "unknown device", "no device", "another operation", "shapes", "no shapes", "64 bits"],
)
def test_fast_or_unknown_multiplications_are_not_reported(run):
    assert not found(run)
