"""ESP705: attention as products and softmax."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.findings.kernels.unfused_attention import _of_rank
from esprof.analyzers.ops.gpu_calls import gpu_calls
from esprof.replay.steps import steps_of
from esprof.run.run import Run
from tests.cases.graph import Args, Row, call, launched, op, run_of, step

TRACES = Path(__file__).resolve().parents[6] / "shared" / "traces"
A100 = "NVIDIA A100-SXM4-80GB"
SCORES, VALUES, DENSE = (
    f"ampere_bf16_s16816gemm_bf16_{tiles}_ldg8_f2f_tn" for tiles in ("256x64", "64x128", "128x128")
)
QUERY_KEY = "[[32, 2048, 64], [32, 64, 2048]]"
BY_VALUE = "[[32, 2048, 2048], [32, 2048, 64]]"
SOFTMAX = ("aten::_softmax", "[[4, 8, 2048, 2048], [], []]", "softmax_warp_forward")
ATTENTION = (("aten::bmm", QUERY_KEY, SCORES), SOFTMAX, ("aten::bmm", BY_VALUE, VALUES))
OPERATIONS = 2 * 2 * 32 * 2048 * 2048 * 64


def shaped(name: str, shapes: str, at: float) -> Row:
    args = Args(dims=msgspec.Raw(shapes.encode()))
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=1, ts=at, dur=10, args=args)


def job(calls=ATTENTION, device: str | None = A100, dense: str = DENSE) -> Run:
    """Steps of 3 ms: a kernel of 600 µs for each call, and a dense one for the rest."""
    rows = []
    for number in range(1, 6):
        at, gpu = number * 3_000.0, number * 3_000.0 + 20
        rows.append(step(number, at, at + 3_000))
        for one, (name, shapes, kernel) in enumerate(calls):
            rows += [
                shaped(name, shapes, at + 12 * one),
                *launched(kernel, at + 12 * one + 2, gpu, 600, 10 * number + one),
            ]
            gpu += 600
        rows += [shaped("aten::mm", "[[8192, 4096], [4096, 4096]]", at + 60)]
        rows += launched(dense, at + 62, gpu, at + 2_900 - gpu, 10 * number + 8)
        rows += [call("cudaDeviceSynchronize", at + 80, 2_850, 10 * number + 9), op("end", at + 2_940, 50)]
    run = run_of({0: rows})
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


def found(run: Run) -> list:
    return [finding for finding in diagnose(run).findings if finding.id == "ESP705"]


def test_products_around_a_softmax_are_priced_as_a_fused_kernel():
    (finding,) = found(job())
    fused = OPERATIONS / 312e12 * 1e6
    assert finding.evidence["attention_per_step"].of(0) == 1_800_000
    assert finding.evidence["fused_at_peak_per_step"].value == pytest.approx(1e3 * fused, abs=1)
    assert finding.evidence["largest_scores"].value == "2048 × 2048"
    assert finding.saving_us == pytest.approx(1_800 - fused, rel=0.03)
    assert "scaled_dot_product_attention" in finding.advice


def test_kernels_that_others_launch_too_are_not_made_faster():
    """The kernel of the scores also runs elsewhere: two of three kernels remain, and the price is below the bound."""
    (finding,) = found(job(dense=SCORES))
    assert finding.saving_us == pytest.approx(1_200, rel=0.03)


def test_an_unknown_device_has_no_price():
    (finding,) = found(job(device="Some GPU"))
    assert (finding.saving_us, finding.severity) == (0, "info")
    assert finding.evidence["fused_at_peak_per_step"].value.startswith("unknown")


def test_the_math_backend_has_its_own_advice():
    run = job((("aten::_scaled_dot_product_attention_math", "[]", "fill"), *ATTENTION))
    assert "math backend" in found(run)[0].advice


@pytest.mark.parametrize(
    "calls",
    [
        ATTENTION[:2],
        (ATTENTION[0], ATTENTION[2]),
        (
            ATTENTION[0],
            ("aten::_softmax", "[[8, 8]]", "softmax"),
            ("aten::bmm", "[[32, 64, 64], [32, 64, 64]]", VALUES),
        ),
        (("aten::mm", "[[64, 64], [64, 64]]", SCORES), SOFTMAX, ATTENTION[2]),
        (ATTENTION[0], SOFTMAX, ("aten::mm", "[[64, 64], [64, 64]]", DENSE), ATTENTION[2]),
        (("aten::_scaled_dot_product_flash_attention", "[[4, 8, 64, 64]]", "flash_fwd_kernel"),),
    ],
    ids=["no values", "no softmax", "other shapes", "a classifier", "a layer between", "flash"],
)
def test_other_products_are_no_attention(calls):
    assert not found(job(calls))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project")
def test_attention_of_a_real_trace_agrees_with_a_count_of_its_own():
    path = TRACES / "megatron-tp8/rank0.pt.trace.json.gz"
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    launches = {e["args"]["correlation"]: e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    begins = sorted(e["ts"] for e in events if e["name"] == "aten::baddbmm")
    ends = sorted(e["ts"] + e["dur"] for e in events if e["name"] == "aten::bmm")
    spans, took = [*zip(begins, ends, strict=True)], 0
    for event in events:
        if event.get("cat") == "kernel":
            at = launches[event["args"]["correlation"]]["ts"]
            took += event["dur"] * any(begin <= at < end for begin, end in spans)
    run = load(path)
    mine = _of_rank(gpu_calls(run.events(0), 0, steps_of(run)), run.rank(0).device)
    assert len(mine.found) == len(spans) == 40
    assert mine.took_ns / 1e3 == pytest.approx(took, rel=0.02)
    assert mine.fused_ns == pytest.approx(40 * OPERATIONS / 312e12 * 1e9, rel=0.02)
