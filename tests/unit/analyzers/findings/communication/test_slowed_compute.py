"""ESP306: kernels that take longer during communication."""

import gzip
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from esprof import load
from esprof.analyzers.findings.communication.slowed_compute import during_communication
from esprof.analyzers.ops.gpu_calls import gpu_calls
from esprof.replay.steps import steps_of
from tests.cases.findings import ungrouped
from tests.cases.graph import Args, Row, call, kernel, launched, op, run_of, step

TRACES = Path(__file__).resolve().parents[6] / "shared" / "traces"


def job(slow: float = 1.3, communication: bool = True, shapes: str = "[[64, 64], [64, 64]]"):
    """Steps of 3 ms: ten products of 100 µs during a collective, which take `slow` times as long, then ten alone."""
    rows = []
    for number in range(1, 6):
        at, gpu = number * 3_000.0, number * 3_000.0 + 300
        rows.append(step(number, at, at + 3_000))
        if communication:
            rows += [call("cudaLaunchKernelExC", at, 5, 100 * number)]
            rows += [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 299, 1_025 * slow, 100 * number, stream=20)]
        for one in range(20):
            took = 100 * (slow if one < 10 else 1) + one % 3
            args = Args(dims=msgspec.Raw(shapes.encode()))
            rows += [
                Row(ph="X", cat="cpu_op", name="aten::mm", pid=100, tid=1, ts=at + 10 + 10 * one, dur=9, args=args)
            ]
            rows += launched("sgemm", at + 11 + 10 * one, gpu, took, 100 * number + 1 + one)
            gpu = gpu + took if one != 9 else at + 299 + 1_025 * slow + 5
        end = gpu - at
        rows += [
            call("cudaDeviceSynchronize", at + 220, end - 210, 100 * number + 90),
            op("end", at + end + 20, 2_970 - end),
        ]
    return run_of({0: rows})


def found(run) -> list:
    return [finding for finding in ungrouped(run) if finding.id == "ESP306"]


def test_slower_kernels_during_a_collective_are_found():
    (finding,) = found(job())
    assert finding.evidence["times_as_long"].value["sgemm"] == pytest.approx(1.3, abs=0.01)
    assert finding.evidence["longer_per_step"].of(0) == pytest.approx(300_000, rel=0.03)
    assert "NCCL_MAX_CTAS" in finding.advice


@pytest.mark.parametrize(
    "run",
    [job(1.0), job(1.005), job(communication=False), job(shapes="[]")],
    ids=["equal", "scatter", "alone", "unknown shapes"],
)
def test_equal_kernels_are_not_reported(run):
    assert not found(run)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project")
def test_time_during_communication_in_a_real_trace_agrees_with_a_count_of_its_own():
    path = TRACES / "hta/nccl_data.json.gz"
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
    reduces = [(e["ts"], e["ts"] + e["dur"]) for e in events if "nccl" in e["name"]]
    expected: Counter = Counter()
    for event in events:
        begin, end = event["ts"], event["ts"] + event["dur"]
        if "nccl" not in event["name"]:
            expected[event["name"]] += sum(max(0, min(end, last) - max(begin, first)) for first, last in reduces)
    run = load(path)
    calls = gpu_calls(run.events(run.ranks[0]), run.ranks[0], steps_of(run))
    (codes, texts), concurrent = calls.kernel, during_communication(calls)
    for name, us in expected.most_common(5):
        assert concurrent[codes == texts.index(name)].sum() / 1e3 == pytest.approx(us, rel=0.02)
