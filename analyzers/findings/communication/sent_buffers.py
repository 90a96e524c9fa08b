"""ESP310: buffers of the model that DDP sends in each step."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.analyzers.views.collectives import SMALL, SteadyStateCollectives, steady_collectives
from esprof.core import readable
from esprof.replay.whatif.communication.buffers import SentBuffers

_SCENARIO = "buffers=0"

_CONSTANTS = "Keep constant arrays out of the buffers of the module: as plain attributes, or outside of it. "
_ADVICE = (
    "Pass `broadcast_buffers=False` to DDP if no buffer has to be equal on all ranks. If BatchNorm's statistics have to be, "
    "SyncBatchNorm computes them from the batches of all ranks."
)


def sent_buffers(case: Case) -> Iterator[Cause]:
    """Buffers that rank 0 sends to all others before each forward pass, whether they have changed or not."""
    sent = steady_collectives(case.replayed)
    if not sent.is_kind("broadcast").any():
        return
    chosen = SentBuffers.of(case.run, sent.dfg).communication[sent.node]
    saving = case.pricer.saving_ns(_SCENARIO) if chosen.any() else None
    if saving is None or not case.is_worth_reporting(saving):
        return
    exposed = sent.exposed_ns(chosen)
    size = _sent_bytes(sent, chosen)
    yield Cause(
        id="ESP310",
        title=f"DDP sends {f'{readable.size(size)} of ' if size else ''}buffers in each step",
        ranks=sent.dfg.marks.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE * min(1.0, max(exposed.values()) / saving),
        confidence="medium",
        evidence={
            **({"sent_per_step": Evidence(round(size), "bytes")} if size else {}),
            "broadcasts_per_step": Evidence(round(sent.a_step(chosen), 1)),
            "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
        },
        advice=("" if size and size < SMALL else _CONSTANTS) + _ADVICE,
    )


def _sent_bytes(sent: SteadyStateCollectives, chosen: np.ndarray) -> float | None:
    """Size of the collectives of the mask `chosen` in a mean step of those whose sizes are all known, bytes; None without
    such a step. Often the rank that sends alone knows the size."""
    nodes = sent.node[chosen]
    number, which = np.unique(sent.dfg.collective[nodes], return_inverse=True)
    size, step = np.full(len(number), -1), np.zeros(len(number), np.int64)
    np.maximum.at(size, which, sent.bytes[chosen])
    step[which] = sent.dfg.step[nodes]
    known = [size[step == one] for one in np.unique(step).tolist() if (size[step == one] >= 0).all()]
    return float(np.mean([sizes.sum() for sizes in known])) if known else None


_PAGES = (
    Page(
        "ESP310",
        "Buffers that DDP sends in each step",
        "Before each forward pass DistributedDataParallel sends all buffers of the module from rank 0 to the other ranks, "
        "so that BatchNorm's statistics stay equal. Tables, masks and data that are registered as buffers are sent, too, "
        "although they never change.",
        "`sent per step` is the size of these buffers, if it was recorded, and `broadcasts per step` the number of "
        "broadcasts that send them. `exposed` is the time per step in which only these broadcasts run, by rank, without "
        "waiting for peers.",
        "`buffers=0`: in replay such broadcasts and the work to pack and unpack them take no time, and nobody waits there "
        "for another rank. Half of the largest `exposed` counts as certain.",
        "Keep constants out of the buffers, or pass `broadcast_buffers=False`.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=sent_buffers)
