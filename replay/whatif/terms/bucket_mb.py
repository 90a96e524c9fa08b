"""`bucket_mb=50`: DDP with other gradient buckets."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.buckets import rebucket
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, mebibytes

MORE, MANY = 2, 8
"""Ratio of collectives to recorded ones from which a note is added (MORE) or the term is declined (MANY). The fixed cost of
a collective may turn a gain into a loss. A probe measures it between CPUs; between GPUs it is estimated from few sizes."""


def _rebucketed(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    size = terms[0].value
    try:
        changed, are_merged = rebucket(now.run, now.dfg, size)
    except NotBuckets as reason:
        raise Declined(f"gradient buckets were not identified: {reason}") from reason
    more, is_measured = _collectives(changed) / _collectives(now.dfg), ProbedCollectives.of(now.run) is not None
    if more > MANY and not is_measured:
        raise Declined(
            f"{more:.0f} times as many all-reduces, whose fixed cost is unknown (measure it with esprof probe)"
        )
    now = replace(now, dfg=changed)
    if are_merged:
        now = now.noted("only whole buckets are merged: the sizes of gradients were not recorded (--shapes)")
    if more > MORE and not is_measured and not changed.has_gpu():
        now = now.noted("the fixed cost of each all-reduce is not counted")
    return now


def _collectives(dfg: Dfg) -> int:
    return int(np.count_nonzero(dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)))


TERM = Kind(
    name="bucket_mb",
    examples=("bucket_mb=50",),
    meaning="DistributedDataParallel uses gradient buckets of this size (`bucket_cap_mb`, in MiB).",
    needs="A run of all ranks, recorded with `--shapes`, whose all-reduces are gradient buckets of DDP. Larger "
    "buckets between GPUs need no shapes. More than eight times as many all-reduces need a probe "
    "(`esprof probe`).",
    assumes="Without a probe, an all-reduce between CPUs has no fixed cost.",
    effect=Edit(TermPhase.REBUILD, _rebucketed),
    value=mebibytes,
)
