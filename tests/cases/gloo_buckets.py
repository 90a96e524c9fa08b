"""Steps of DDP between CPUs made by hand: gradients, and gloo all-reduces of their buckets."""

from itertools import accumulate

import msgspec

from esprof.replay.whatif.gradients.buckets import MIB
from tests.cases.graph import GLOO, MAIN, Args, Row, op, run_of, step

MS = 1000.0
EVALUATE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"
ELEMENTS = MIB // 4
BACKWARD_MS, COMMUNICATION_MS = 10.0, 20.0


def row(category, name, start, dur, tid=MAIN, dims=None, types=None):
    args = Args(dims=dims and msgspec.Raw(dims), types=types and msgspec.Raw(types))
    return Row(ph="X", cat=category, name=name, pid=100, tid=tid, ts=start, dur=dur, args=args)


def gloo_collective(launched, begin, took, elements, word="all_reduce"):
    call, shape = f"[[[{elements}]]]".encode(), f"[[{elements}]]".encode()
    return [
        row("cpu_op", f"c10d::{word.replace('_', '')}_", launched, 40, dims=call, types=b'["TensorList"]'),
        row("user_annotation", f"gloo:{word}", begin, took, GLOO, shape, b'["float"]'),
    ]


def ddp_step(sizes, buckets, *, shapes=True, last="Optimizer.step", last_ms=5):
    """One step in which gradients of `sizes` MiB become ready every 10 ms. `buckets` (numbers of gradients) are reduced at
    20 ms per MiB, one bucket after the other. Each gradient is copied out of its bucket in 1 ms; `last` takes `last_ms`."""
    rows, now = [], 0.0
    closing = dict(zip((last - 1 for last in accumulate(buckets)), buckets, strict=True))
    free, done = 0.0, []
    for number, size in enumerate(sizes):
        rows.append(op(f"{EVALUATE}AddmmBackward0", now, BACKWARD_MS * MS - 100))
        at = now + BACKWARD_MS * MS - 100
        dims = f"[[{int(size * ELEMENTS)}]]".encode() if shapes else None
        rows += [op(EVALUATE + GRADIENT, at, 100), row("cpu_op", GRADIENT, at + 10, 20, dims=dims)]
        now += BACKWARD_MS * MS
        if number in closing:
            moved = sum(sizes[number + 1 - closing[number] : number + 1])
            elements = int(moved * ELEMENTS)
            begin = max(free, at + 90)
            free = begin + moved * COMMUNICATION_MS * MS
            rows += gloo_collective(at + 50, begin, free - begin, elements)
            done += [free] * closing[number]
    for ready in done:
        now = max(now, ready)
        rows.append(op("torch.distributed.ddp.reducer::copy_bucket_to_grad", now, MS))
        now += MS
    rows.append(op(last, now, last_ms * MS))
    return [step(1, 0, now + last_ms * MS), *rows]


def run_with(sizes, buckets, **how):
    return run_of({rank: ddp_step(sizes, buckets, **how) for rank in (0, 1)})
