"""Synthetic measurements of compressed exchanges, and plans with compression."""

from msgspec.structs import replace

from esprof.core.plan import Plan, PlanEvidence, PlannedJob, PlanPart, PlanParts, PlanPromise
from esprof.run.probes import Point, Sweep
from tests.cases.probed import RANKS

MIB = 1 << 20


def exchange(codec, begin_ms, took_ms, *, coding_ms=0.0, cpu_ms=0.0, sizes=(MIB,), sent=None, vnmse=0.01):
    """Sweeps of a codec on both ranks: times per MiB, proportional to the size."""

    def sweep(kind, ranks, ms, cpu=0.0):
        points = tuple(
            Point(
                size=size,
                samples_ns=(round(ms * 1e6 * size / MIB),) * 3,
                cpu_ns=round(cpu * 1e6 * size / MIB),
                sent=sent,
                vnmse=vnmse,
            )
            for size in sizes
        )
        return Sweep(kind=kind, name=codec, unit="bytes", ranks=ranks, device="cpu", backend="gloo", points=points)

    own = [sweep(kind, (rank,), ms) for kind, ms in (("begin", begin_ms), ("coding", coding_ms)) for rank in RANKS]
    return [sweep("exchange", RANKS, took_ms, cpu_ms), *own]


def narrow_scatter(narrow_ms, took_ms, *, add_ms=0.0, cpu_ms=0.0, sizes=(MIB,), sent=None, vnmse=1e-6):
    """Sweeps of a reduce-scatter as bf16 on both ranks: times per MiB, proportional to the size."""
    kinds = {"exchange": "shards", "begin": "narrow", "coding": "add"}
    of = exchange("bf16", narrow_ms, took_ms, coding_ms=add_ms, cpu_ms=cpu_ms, sizes=sizes, sent=sent, vnmse=vnmse)
    return [replace(one, kind=kinds[one.kind]) for one in of]


def planned(**parts):
    job = PlannedJob(n_est=2, world=2)
    return Plan(id="x", job=job, parts=PlanParts(**parts))


def part(body):
    promise = PlanPromise(step_us=1, low_us=1, high_us=1, baselines_us={})
    return PlanPart(
        applies="live",
        changes_bits=True,
        evidence=PlanEvidence(run="r", replay_error_pct=None),
        predicted=promise,
        body=body,
    )
