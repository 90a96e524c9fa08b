"""Figures that an expert asks of a GPU trace, against short counts of their own from the JSON of real traces."""

import gzip
import json
import re
from bisect import bisect_right
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from statistics import mean

import pytest

from esprof import load
from esprof.analyzers.findings.host.small_kernels import small_kernels
from esprof.analyzers.findings.kernels.fp32_matmul import fp32_matmul
from esprof.analyzers.findings.memory.allocator import allocator
from esprof.analyzers.ops.over_ranks import ops_run
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.views.amounts import amounts
from esprof.analyzers.views.breakdown import breakdown
from esprof.replay.replayed import Replayed

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
MEGATRON, TORCHREC = "megatron-tp8", "torchrec-4xv100/long_a2a_3"
RESNET, NCCL, LOADER = "hta/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", "hta/nccl_data.json.gz", "dataloader-w0"

WITHIN = 0.02
"""Largest relative difference."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project"),
]


@cache
def rows(name: str) -> list[dict]:
    """The complete events of a trace."""
    document = json.loads(gzip.decompress((TRACES / name).read_bytes()))
    events = document if isinstance(document, list) else document["traceEvents"]
    return [row for row in events if row.get("ph") == "X"]


def spans(name: str, steps) -> list[tuple[float, float]]:
    """Begin and end of these steps, µs."""
    names = {f"ProfilerStep#{step}" for step in steps}
    found = [row for row in rows(name) if row["name"] in names and "gpu" not in row.get("cat", "")]
    return [(row["ts"], row["ts"] + row["dur"]) for row in found]


def launches(name: str, steps) -> list[tuple[dict, dict]]:
    """(runtime call, its GPU work) of all work launched in these steps, by thread and time."""
    work = {row["args"]["correlation"]: row for row in rows(name) if "stream" in row.get("args", {})}
    calls = [row for row in rows(name) if row.get("cat", "").lower() in ("cuda_runtime", "runtime")]
    within = spans(name, steps)
    pairs = [(call, work.get(call.get("args", {}).get("correlation"))) for call in calls]
    inside = [(call, made) for call, made in pairs if made and any(a <= call["ts"] < b for a, b in within)]
    return sorted(inside, key=lambda pair: (str(pair[0]["tid"]), pair[0]["ts"]))


def worked_us(name: str, tid, moment: float) -> float:
    """Time before a moment in which an operation or runtime call is open on a thread, µs."""
    begin, end, before = merged(name, str(tid))
    at = bisect_right(begin, moment) - 1
    return before[at] + min(moment, end[at]) - begin[at] if at >= 0 else 0.0


@cache
def merged(name: str, tid: str) -> tuple[list[float], list[float], list[float]]:
    """(begins, ends, time covered before each) of the union of a thread's operations and runtime calls, µs."""
    kinds = ("cpu_op", "operator", "cuda_runtime", "runtime")
    mine = [row for row in rows(name) if row.get("cat", "").lower() in kinds and str(row["tid"]) == tid]
    begin, end = list[float](), list[float]()
    for row in sorted((row for row in mine if "ProfilerStep" not in row["name"]), key=lambda row: row["ts"]):
        if not end or row["ts"] > end[-1]:
            begin.append(row["ts"])
            end.append(row["ts"] + row["dur"])
        end[-1] = max(end[-1], row["ts"] + row["dur"])
    return begin, end, [0.0, *accumulate(b - a for a, b in zip(begin, end, strict=True))]


def computes(work: dict) -> bool:
    return not re.search("nccl|HtoD|DtoH", work["name"])


def cause(name: str, rule):
    """(steady-state steps, what the rule finds) of a trace."""
    replayed = Replayed.of(load(TRACES / name))
    return replayed.steps.steady, next(iter(rule(Case(replayed, RecordedJob(replayed.run)))))


def ranks(name: str) -> list[str]:
    return [f"{name}/{file.name}" for file in sorted((TRACES / name).glob("*.gz"))]


def test_model_flop_utilisation():
    answer = ops_run(load(TRACES / MEGATRON))
    at_peak = took = 0.0
    for rank in ranks(MEGATRON):
        ((begin, end),) = spans(rank, answer.steps)
        took += end - begin
        for row in rows(rank):
            if row["name"] in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm") and begin <= row["ts"] < end:
                first, second = [size for size in row["args"]["Input Dims"] if len(size) > 1][-2:]
                at_peak += 2 * prod(first) * second[-1] / 312e12 * 1e6
    assert answer.utilisation.mfu_pct == pytest.approx(100 * at_peak / took, rel=WITHIN)


def test_bus_bandwidth_by_size():
    answer = ops_run(load(TRACES / MEGATRON))
    kernels = [[row for row in rows(rank) if "AllReduce_Sum_f16" in row["name"]] for rank in ranks(MEGATRON)]
    in_order = [sorted((row["ts"], row["ts"] + row["dur"]) for row in of_rank) for of_rank in kernels]
    after_last_us = [
        mean(end for _, end in one) - max(begin for begin, _ in one) for one in zip(*in_order, strict=True)
    ]
    size = 4 * 2048 * 4096 * 2
    (large,) = [one for one in answer.collectives if one.largest == size]
    assert large.us == pytest.approx(mean(after_last_us), rel=WITHIN)
    assert large.bus_bytes_per_s == pytest.approx(size / mean(after_last_us) * 1e6 * 2 * 7 / 8, rel=WITHIN)


@pytest.mark.parametrize(("job", "trace", "rank"), [(TORCHREC, f"{TORCHREC}/rank0", 0), (RESNET, RESNET, 0)])
def test_share_of_float32_multiplications(job, trace, rank):
    steps, finding = cause(job, fp32_matmul)
    file = next((one for one in ranks(job) if one.startswith(trace)), trace)
    work = [made for _, made in launches(file, steps) if computes(made)]
    plain = re.compile("(?<![a-z])sgemm(?!_fp16)|_simt_sgemm|scudnn|f32f32_f32f32_f32_|_ffma_")
    share = sum(row["dur"] for row in work if plain.search(row["name"])) / sum(row["dur"] for row in work)
    assert finding.evidence["share_of_gpu_work"].of(rank) == pytest.approx(share, rel=WITHIN)


@pytest.mark.parametrize("job", [NCCL, LOADER])
def test_small_kernels(job):
    steps, finding = cause(job, small_kernels)
    file = next(iter(ranks(job)), job)
    of_step = [pair for pair in launches(file, steps) if computes(pair[1])]
    count = took = 0.0
    for (before, _), (call, kernel) in pairwise(of_step):
        worked = [worked_us(file, one["tid"], one["ts"]) for one in (before, call)]
        if before["tid"] == call["tid"] and kernel["dur"] < worked[1] - worked[0]:
            count, took = count + 1, took + kernel["dur"]
    small, total = (float(number.replace(",", "")) for number in re.findall(r"[\d,]+", finding.title)[:2])
    assert total == pytest.approx(len(of_step) / len(steps), rel=WITHIN)
    assert small == pytest.approx(count / len(steps), rel=WITHIN)
    assert finding.evidence["gpu_time_of_small_kernels"].of(0) == pytest.approx(1e3 * took / len(steps), rel=WITHIN)


def union_us(intervals, within) -> float:
    """Time that any of these intervals covers within others, µs."""
    total = 0.0
    for first, last in within:
        reached = first
        for begin, end in sorted(intervals):
            total += max(0.0, min(end, last) - max(begin, reached))
            reached = max(reached, min(end, last))
    return total


def test_share_of_communication_that_compute_hides():
    replayed = Replayed.of(load(TRACES / TORCHREC))
    on_gpu = [[row for row in rows(one) if "stream" in row.get("args", {})] for one in ranks(TORCHREC)]
    sent = [sorted(((row["ts"], row) for row in of if "nccl" in row["name"]), key=lambda one: one[0]) for of in on_gpu]
    same = min(map(len, sent))  # Windows begin at different times: collectives are counted from the end.
    joined = [max(begin for begin, _ in one) for one in zip(*(of[-same:] for of in sent), strict=True)]
    for part, file, work, mine in zip(breakdown(replayed), ranks(TORCHREC), on_gpu, sent, strict=True):
        moves = [
            (max(at, row["ts"]), row["ts"] + row["dur"]) for at, (_, row) in zip(joined, mine[-same:], strict=True)
        ]
        computing = [(row["ts"], row["ts"] + row["dur"]) for row in work if computes(row)]
        within = spans(file, replayed.steps.steady)
        communication, both = union_us(moves, within), union_us(moves + computing, within)
        hidden = communication + union_us(computing, within) - both
        assert part.overlap_pct == pytest.approx(100 * hidden / communication, rel=WITHIN)


def elements(dims) -> int:
    """Elements of tensors of these sizes, which may be lists of tensors."""
    if dims and all(isinstance(one, int) for one in dims):
        return prod(dims)
    return sum(elements(one) for one in dims if isinstance(one, list))


def test_amounts_of_work_by_rank():
    replayed = Replayed.of(load(TRACES / MEGATRON))
    steps = replayed.steps.steady
    found = amounts(RecordedJob(replayed.run), replayed.run.ranks, steps)["elements of input tensors"].sum(axis=0)
    for mine, file in zip(found.tolist(), ranks(MEGATRON), strict=True):
        ((begin, end),) = spans(file, steps)
        inside = [row for row in rows(file) if row.get("cat") == "cpu_op" and begin <= row["ts"] < end]
        assert mine == pytest.approx(
            sum(elements(row.get("args", {}).get("Input Dims", [])) for row in inside), rel=WITHIN
        )


@pytest.mark.parametrize("job", [TORCHREC, "torchrec-4xv100/long_a2a_5_qcomm"])
def test_time_in_the_allocator(job):
    """Without the wait of cudaFree for the work that was launched before it."""
    replayed = Replayed.of(load(TRACES / job))
    finding = next(iter(allocator(Case(replayed, RecordedJob(replayed.run)))))
    for rank, file in enumerate(ranks(job)):
        calls = [row for row in rows(file) if row["name"] in ("cudaMalloc", "cudaFree")]
        launched = {row["args"]["correlation"]: row["ts"] for row in rows(file) if row.get("cat") == "cuda_runtime"}
        work = [
            (launched.get(row["args"]["correlation"], 0), row["ts"] + row["dur"])
            for row in rows(file)
            if "stream" in row.get("args", {})
        ]
        own = 0.0
        for call in calls:
            begin, end = call["ts"], call["ts"] + call["dur"]
            if not any(first <= begin < last for first, last in spans(file, replayed.steps.all)):
                continue
            done = max(end for at, end in work if at < begin) if call["name"] == "cudaFree" else begin
            own += end - min(max(begin, done), end)
        expected = 1e3 * own / len(replayed.steps.all)
        assert finding.evidence["allocator_per_step"].of(rank) == pytest.approx(expected, rel=WITHIN)
