"""Model FLOP utilisation of handmade steps, and of real traces against a count of their own."""

import gzip
import json
import math
from pathlib import Path

import msgspec
import pytest

from esprof import load
from esprof.analyzers.ops.over_ranks import ops_run
from esprof.analyzers.views.operation_counts import COUNTED, convolution, dims_of, least_elements
from esprof.run.run import Run
from tests.cases.graph import Args, Row, call, launched, op, run_of, step

TRACES = Path(__file__).resolve().parents[5] / "shared" / "traces"
A100 = "NVIDIA A100-SXM4-80GB"
HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"


def shaped(name: str, shapes: str, at: float, dur: float = 20) -> Row:
    args = Args(dims=msgspec.Raw(shapes.encode()))
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=1, ts=at, dur=dur, args=args)


def on(device: str | None, rows: list[Row]) -> Run:
    run = run_of({0: rows})
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


def used(device: str | None = A100, shapes: str = "[[4096, 4096], [4096, 4096]]", uncounted: float = 0.0):
    rows = []
    for number in range(1, 4):
        at = number * 1_000.0
        rows += [step(number, at, at + 1_000), shaped("aten::mm", shapes, at)]
        rows += launched(HALF, at + 5, at + 20, 600, 3 * number)
        if uncounted:
            rows += [op("custom", at + 30, 20), *launched(HALF, at + 35, at + 650, uncounted, 3 * number + 1)]
        rows += [call("cudaDeviceSynchronize", at + 60, 900, 3 * number + 2)]
    return ops_run(on(device, rows)).utilisation


def test_operations_at_the_peak_over_the_step():
    found = used()
    operations = 2 * 4096**3
    assert found.operations_per_step == operations
    assert found.mfu_pct == pytest.approx(100 * operations / 312e12 / 1e-3, rel=1e-4)
    assert (found.precisions, found.counted_share, found.is_lower_bound) == ({"16 bits": 1.0}, 1.0, False)


def test_multiplications_without_shapes_make_it_a_lower_bound():
    found = used(uncounted=200)
    assert found.is_lower_bound
    assert found.counted_share == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("device", "shapes", "reason"),
    [("Some GPU", "[[8, 8], [8, 8]]", "peak"), (A100, "[]", "shapes"), (A100, "[[8, 8], [4, 8]]", "shapes")],
)
def test_it_is_declined_with_a_reason(device, shapes, reason):
    found = used(device, shapes)
    assert found.mfu_pct is None
    assert reason in found.reason


def test_steps_without_multiplications_have_none():
    rows = [step(1, 0, 100), op("aten::add", 0, 20), *launched("vectorized_elementwise_kernel", 5, 20, 50, 1)]
    assert ops_run(on(A100, rows)).utilisation is None


@pytest.mark.parametrize(
    ("name", "shapes", "operations"),
    [
        ("aten::addmm", "[[8], [16, 4], [4, 8], [], []]", 2 * 16 * 4 * 8),
        ("aten::bmm", "[[3, 16, 4], [3, 4, 8]]", 3 * 2 * 16 * 4 * 8),
        ("aten::bmm", "[[3, 16, 4], [3, 5, 8]]", None),
        ("aten::convolution_backward", "[[2, 8, 5, 5], [2, 4, 10, 10], [8, 4, 3, 3], []]", 2 * 2 * 2 * 8 * 25 * 36),
        # Transposed: the input has the channels that are first in the weight.
        ("aten::convolution_backward", "[[2, 4, 10, 10], [2, 8, 5, 5], [8, 4, 3, 3], []]", 2 * 2 * 2 * 8 * 25 * 36),
        ("aten::_scaled_dot_product_flash_attention", "[[2, 4, 16, 8], [2, 4, 32, 8], [2, 4, 32, 8]]", 4 * 8 * 512 * 8),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            "[[2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 32, 8], [2, 4, 32, 8]]",
            10 * 8 * 512 * 8,
        ),
        ("aten::mm", '[["8", 4], [4, 2]]', None),
        ("aten::mm", "[[8, 4", None),
    ],
)
def test_operations_follow_from_shapes(name, shapes, operations):
    assert COUNTED[name](dims_of(shapes)) == operations


def test_a_convolution_counts_each_element_of_its_output():
    assert convolution([[2, 4, 10, 10], [8, 4, 3, 3]], [2, 8, 5, 5]) == 2 * (2 * 8 * 25) * 36


@pytest.mark.parametrize(
    ("name", "shapes", "elements"),
    [
        ("aten::add", "[[8, 4], [4], []]", 8 * 4 + 4 + 8 * 4),
        ("aten::copy_", "[[8, 4], [8, 4], []]", 64),
        ("aten::fill_", "[[8, 4], []]", 32),
        ("aten::mm", "[[8, 4], [4, 2]]", 32 + 8 + 16),
        ("aten::index_select", "[[8, 4], [], [2]]", None),
    ],
)
def test_least_traffic_follows_from_shapes(name, shapes, elements):
    assert least_elements(name, dims_of(shapes)) == elements


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project")
@pytest.mark.parametrize(
    ("name", "step_names", "peak"),
    [
        ("megatron-tp8/rank0.pt.trace.json.gz", {"ProfilerStep#3"}, 312e12),
        ("dataloader-w0/resnet50_num_workers_0.pt.trace.json.gz", {f"ProfilerStep#{n}" for n in range(6, 11)}, 15.7e12),
    ],
)
def test_real_traces_agree_with_a_count_of_their_own(name, step_names, peak):
    with gzip.open(TRACES / name) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    spans = [(event["ts"], event["dur"]) for event in events if event["name"] in step_names]
    operations = 0
    for event in events:
        shapes = event.get("args", {}).get("Input Dims")
        if not shapes or not any(at <= event["ts"] < at + took for at, took in spans):
            continue
        if event["name"] == "aten::cudnn_convolution_backward":
            # The forward pass and both gradients are a multiply-add per element of the output and of a filter.
            operations += 3 * 2 * math.prod(shapes[1]) * math.prod(shapes[2][1:])
        elif event["name"] in ("aten::mm", "aten::bmm"):
            operations += 2 * math.prod(shapes[0]) * shapes[1][-1]
        elif event["name"] in ("aten::addmm", "aten::baddbmm"):
            operations += 2 * math.prod(shapes[1]) * shapes[2][-1]
    expected = 100 * operations / peak / (1e-6 * sum(took for _, took in spans))
    assert ops_run(load(TRACES / name)).utilisation.mfu_pct == pytest.approx(expected, rel=0.02)
