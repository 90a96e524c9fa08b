"""ESP310 and `buffers=0`: buffers of a model that DDP sends before forward passes."""

import msgspec
import pytest
from msgspec.structs import replace

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import gloo, op, run_of, step

MS, STEP = 1_000.0, 30_000.0


def forward_of_ddp(start, end):
    return replace(step(0, start, end), name="DistributedDataParallel.forward")


def broadcast(at, took):
    """What `broadcast_coalesced` does for 1 MB of buffers: it packs for 0.5 ms, sends, and unpacks for 0.5 ms."""
    call, work = gloo(at + MS / 2, at + 0.51 * MS, at + 0.51 * MS + took)
    sizes = replace(work.args, dims=msgspec.Raw(b"[[250000]]"))
    return [
        op("aten::flatten_dense_tensors", at, MS / 2 - 1),
        replace(call, name="c10d::broadcast_", args=None, dur=took + 10),
        replace(work, name="gloo:broadcast", args=sizes),
        op("aten::unflatten_dense_tensors", at + MS / 2 + took + 20, MS / 2),
    ]


def rows(*, within):
    """Six steps of 30 ms: a broadcast of 4 ms, within the forward pass or before it, 19 ms of work, and an all-reduce."""
    found = []
    for n in range(6):
        at = STEP * n
        begin = at if within else at + 6 * MS
        found += [step(n, at, at + STEP), forward_of_ddp(begin, at + 15 * MS), *broadcast(at, 4 * MS)]
        found += [op("aten::mm", at + 6 * MS, 9 * MS), op("aten::mul", at + 15 * MS, 10 * MS)]
        found += [*gloo(at + 25 * MS, at + 25.1 * MS, at + 29 * MS), op("aten::add", at + 29 * MS, MS)]
    return found


def job(**how):
    return run_of({rank: rows(**how) for rank in range(2)})


def test_buffers_sent_before_forward_passes_are_named_and_priced():
    finding = next(one for one in diagnose(job(within=True)).findings if one.id == "ESP310")
    assert finding.title == "DDP sends 976.6 KiB of buffers in each step"
    # Packing, sending and unpacking.
    assert finding.saving_us == pytest.approx(5 * MS, rel=0.05)
    assert finding.saving_low_us == pytest.approx(2 * MS, rel=0.05)
    assert finding.evidence["broadcasts_per_step"].value == 1
    assert finding.advice.startswith("Pass `broadcast_buffers=False`")  # So few bytes cost only their broadcast.
    assert finding.evidence["exposed"].of(0) == pytest.approx(4 * MS * 1_000, rel=0.05)


def test_a_broadcast_of_the_job_is_no_buffer():
    run = job(within=False)
    assert not [one for one in diagnose(run).findings if one.id == "ESP310"]
    (answer,) = what_if(run, build(run), ["buffers=0"])
    assert answer.reason == "no broadcast before a forward pass of DDP was recorded in these steps"
