"""ESP704: devices that compute for nearly all of the step."""

import gzip
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.ops.gpu_calls import gpu_calls
from esprof.analyzers.ops.kernel_work import kernel_work
from esprof.replay.steps import steps_of
from esprof.run.run import Run
from tests.cases.graph import Args, Row, call, launched, op, run_of, step

TRACES = Path(__file__).resolve().parents[6] / "shared" / "traces"
A100 = "NVIDIA A100-SXM4-80GB"
HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
PRODUCT = "[[8192, 8192], [8192, 8192]]"
"""1.1 T operations: at 312 T/s they take 3,524 µs."""
SUM = "[[16384, 16384], [16384, 16384]]"
"""Reads and writes at least 1.6 GB in 16 bits: at 2,039 GB/s they take 790 µs."""


def shaped(name: str, shapes: str, at: float) -> Row:
    args = Args(dims=msgspec.Raw(shapes.encode()))
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=1, ts=at, dur=20, args=args)


def job(device: str | None = A100, busy: float = 1.0, product: str = PRODUCT, total: str = SUM) -> Run:
    """Steps of 10 ms: a product for 6 ms, a sum for 3.8 ms, scaled by `busy`."""
    rows = []
    for number in range(1, 6):
        at = number * 10_000.0
        rows += [step(number, at, at + 10_000), shaped("aten::mm", product, at)]
        rows += launched(HALF, at + 5, at + 20, 6_000 * busy, 3 * number)
        rows += [shaped("aten::add", total, at + 30)]
        rows += launched(ADD, at + 35, at + 20 + 6_000 * busy, 3_800 * busy, 3 * number + 1)
        rows += [call("cudaDeviceSynchronize", at + 60, 9_800 * busy - 20, 3 * number + 2)]
        rows += [op("end", at + 9_800 * busy + 50, 9_950 - 9_800 * busy)]
    run = run_of({0: rows})
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


def found(run: Run) -> list:
    return [finding for finding in diagnose(run).findings if finding.id == "ESP704"]


def test_kernels_are_named_with_share_and_bound():
    (finding,) = found(job())
    assert finding.title.startswith(f"The GPU computes for 98 % of the step; {HALF[:43]}… takes 60 %, bound by tensor")
    assert (finding.severity, finding.saving_us) == ("info", 0)
    shares, bounds = finding.evidence["share_of_step"].value, finding.evidence["bound_by"].value
    assert shares == {f"{HALF[:43]}…": 0.6, "vectorized_elementwise_kernel of aten::add": 0.38}
    assert "183.3 TFLOP/s, 59 % of the peak at 16 bits" in bounds[f"{HALF[:43]}…"]
    assert finding.evidence["model_flop_utilisation"].value == pytest.approx(2 * 8192**3 / 312e12 / 10e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("device", "product", "bound", "says"),
    [
        (A100, "[[512, 8192], [8192, 8192]]", "near no peak", "shapes, memory layout"),
        (A100, "[]", "bound unknown", "none of those"),
        ("Some GPU", PRODUCT, "bound unknown (183.3 TFLOP/s", "not known"),
    ],
)
def test_what_is_unknown_is_said(device, product, bound, says):
    (finding,) = found(job(device, product=product))
    assert bound in finding.title
    assert says in finding.advice


def test_small_kernels_are_bound_by_their_size():
    rows = []
    for number in range(1, 6):
        at = number * 1_000.0
        rows += [step(number, at, at + 1_000), shaped("aten::add", "[[64], [64], []]", at - 0)]
        for one in range(240):
            rows += launched(ADD, at + 0.01 * one, at + 10 + 4 * one, 4, 300 * number + one)
        rows += [call("cudaDeviceSynchronize", at + 20, 950, 300 * number + 299), op("end", at + 972, 25)]
    (finding,) = found(run_of({0: rows}))
    assert "bound by its size (0.004 ms a launch)" in finding.title


def test_memory_bounds_a_sum():
    run = job()
    steps = steps_of(run)
    calls = gpu_calls(run.events(0), 0, steps)
    product, total = kernel_work([(calls, A100)])
    assert (product.bound, total.memory_share) == ("arithmetic", pytest.approx(790 / 3800, rel=0.01))
    total.took_ns, total.bytes_ns = total.took_ns / 4, total.bytes_ns / 4
    assert total.bound == "memory"


def test_steps_in_which_the_device_idles_are_not_reported():
    assert not found(job(busy=0.8))


def test_jobs_on_cpus_are_not_reported():
    rows = []
    for number in range(1, 5):
        rows += [step(number, number * 100, number * 100 + 100), op("aten::mm", number * 100, 99)]
    assert not found(run_of({0: rows}))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project")
def test_kernels_of_a_real_trace_agree_with_a_count_of_its_own():
    path = TRACES / "megatron-tp8/rank0.pt.trace.json.gz"
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    took: Counter = Counter()
    for event in events:
        if event.get("cat") == "kernel" and "nccl" not in event["name"]:
            took[event["name"]] += event["dur"]
    run = load(path)
    steps = steps_of(run)
    kernels = kernel_work([(gpu_calls(run.events(0), 0, steps), run.rank(0).device)])
    mine = {name: ns / 1e3 for one in kernels for name, ns in one.names.items()}
    for name, us in took.most_common(6):
        assert mine[name] == pytest.approx(us, rel=0.02)
    # Query, key and value projections and others of the first kernel: rows × inner size × columns, from the trace.
    products = [event["args"]["Input Dims"] for event in events if event["name"] == "aten::mm"]
    sums = [e for e in kernels if e.operations and e.precision == "16 bits"]
    total = sum(2 * a[0] * a[1] * b[1] for a, b in products) + 40 * 2 * 2 * 32 * 2048 * 64 * 2048
    assert sum(e.operations for e in sums) == pytest.approx(total, rel=0.02)
