"""Steps of DDP between GPUs made by hand: gradients, and NCCL all-reduces of their buckets."""

from itertools import accumulate

import msgspec

from esprof.replay.whatif.gradients.backward import EVALUATE, GRADIENT
from esprof.replay.whatif.gradients.buckets import MIB
from tests.cases.graph import BACKWARD, MAIN, Args, Row, call, kernel, op, run_of, step

MS = 1000.0
COMPUTE_MS, COMMUNICATION_MS, OPTIMIZER_MS = 10.0, 20.0, 5.0
LATENCY_US = 100.0
NCCL = 20
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def accumulated(at, size, *, shapes):
    dims = msgspec.Raw(f"[[{int(size * MIB / 2)}]]".encode()) if shapes else None
    inner = Row(ph="X", cat="cpu_op", name=GRADIENT, pid=100, tid=BACKWARD, ts=at + 1, dur=2, args=Args(dims=dims))
    return [op(EVALUATE, at, 40, BACKWARD), inner]


def launched(at, correlation, begin, took, size, name=ALL_REDUCE):
    """An all-reduce that is launched at `at`, after earlier work of the computing stream."""
    return [
        call("cudaEventRecord", at, 1, correlation, BACKWARD),
        call("cudaStreamWaitEvent", at + 2, 1, correlation + 1, BACKWARD),
        call("cudaLaunchKernelExC", at + 4, 5, correlation + 2, BACKWARD),
        kernel(name, begin, took, correlation + 2, NCCL, in_elements=int(size * MIB / 2), dtype="BFloat16"),
        call("cudaEventRecord", at + 10, 1, correlation + 3, BACKWARD),
    ]


def ddp_step(
    sizes,
    buckets,
    *,
    shapes=True,
    name=ALL_REDUCE,
    metric=0.0,
    since=150.0,
    compute_ms=COMPUTE_MS,
    communication_ms=COMMUNICATION_MS,
    slower=(),
):
    """One step on a GPU that computes `compute_ms` for each gradient of `sizes` MiB in half precision.

    They are reduced in `buckets` (numbers of gradients), in `communication_ms` per MiB and 0.1 ms each; the all-reduces
    `slower` (numbers of their last gradients) take three times as long. The optimizer takes 5 ms after the last of them. A
    `metric` (MiB) is reduced after the backward pass, which begins at `since`, µs.
    """
    rows = [op("forward", 0, 100)]
    closing = dict(zip((behind - 1 for behind in accumulate(buckets)), buckets, strict=True))
    computed, free = since + 50, 0.0
    for number, size in enumerate(sizes):
        at, correlation = since + 50 * number, 10 + 10 * number
        rows += accumulated(at, size, shapes=shapes)
        rows.append(call("cudaLaunchKernel", at + 5, 5, correlation, BACKWARD))
        rows.append(kernel("gemm", computed, compute_ms * MS, correlation))
        computed += compute_ms * MS
        if number in closing:
            moved = sum(sizes[number + 1 - closing[number] : number + 1])
            begin, took = max(free, computed), moved * communication_ms * MS + LATENCY_US
            took *= 3 if number in slower else 1
            rows += launched(at + 12, correlation + 1, begin, took, moved, name)
            free = begin + took
    now = since + 50 * len(sizes)
    rows += [call("cudaStreamWaitEvent", now + 2 * at, 1, 900 + at, BACKWARD) for at in range(len(buckets))]
    now += 100
    if metric:
        rows += [call("cudaLaunchKernelExC", now, 5, 920), kernel(ALL_REDUCE, free, 50, 920, NCCL)]
        free += 50
        now += 20
    end = free + OPTIMIZER_MS * MS
    rows += [call("cudaLaunchKernel", now, 5, 940), kernel("adam", free, OPTIMIZER_MS * MS, 940)]
    rows.append(call("cudaDeviceSynchronize", now + 10, end - now - 10, 950, MAIN))
    return [step(1, 0, end + 10), *rows]


def run_with(sizes, buckets, **how):
    return run_of({rank: ddp_step(sizes, buckets, **how) for rank in (0, 1)})
