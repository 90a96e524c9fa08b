"""`bucket_mb=50`: DDP with other gradient buckets."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.buckets import rebucket
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, number

MORE, MANY = 2, 8
"""How many times as many transfers as recorded give a note (MORE), or are declined (MANY): what a transfer costs beside its
bytes is known between CPUs where it was probed, told from few sizes between GPUs, and may turn a gain into a loss."""


def _rebucketed(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    sizes = {term.value for term in terms}
    if len(sizes) > 1:
        raise Declined("buckets cannot have two sizes at once")
    (size,) = sizes
    try:
        changed, are_whole = rebucket(now.run, now.dfg, size)
    except NotBuckets as reason:
        raise Declined(f"these are no gradient buckets that can be told apart: {reason}") from reason
    more, is_measured = _transfers(changed) / _transfers(now.dfg), ProbedCollectives.of(now.run) is not None
    if more > MANY and not is_measured:
        raise Declined(
            f"{more:.0f} times as many transfers: what each costs beside its bytes is not known (esprof probe measures it)"
        )
    now = replace(now, dfg=changed)
    if are_whole:
        now = now.noted("recorded buckets are put together whole: the sizes of gradients were not recorded (--shapes)")
    if more > MORE and not is_measured and not changed.has_gpu():
        now = now.noted("what a transfer costs beside its bytes is not counted")
    return now


def _transfers(dfg: Dfg) -> int:
    return int(np.count_nonzero(dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)))


TERM = Kind(
    name="bucket_mb",
    examples=("bucket_mb=50",),
    meaning="DistributedDataParallel with gradient buckets of another size (`bucket_cap_mb`, in MiB).",
    needs="A run of all ranks, recorded with `--shapes`, whose all-reduces are DDP's gradient buckets. Between GPUs, larger "
    "buckets need no shapes. Many more transfers need a probe (`esprof probe`).",
    effect=Edit(TermPhase.REBUILD, _rebucketed),
    value=number,
)
