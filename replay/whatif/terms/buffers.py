"""`buffers=0`: DDP does not send the buffers of its model before forward passes."""

from esprof.replay.whatif.communication.buffers import SentBuffers
from esprof.replay.whatif.graph.selections import not_recorded, required, without_collectives, without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_buffers(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    sent, nothing = SentBuffers.of(now.run, now.dfg), not_recorded(now.dfg, "broadcast before a forward pass of DDP")
    now = without_collectives(now, required(sent.communication, nothing))
    return without_share(now, terms, sent.share, nothing)


TERM = Kind(
    name="buffers",
    examples=("buffers=0",),
    meaning="DDP sends no buffers of its model before forward passes, and no rank waits for another there.",
    needs="Broadcasts before forward passes of DDP that are matched on all their ranks.",
    assumes="The buffers of all ranks stay equal without that, or may differ.",
    effect=Edit(TermPhase.REMOVE, _without_buffers),
    value=zero,
)
