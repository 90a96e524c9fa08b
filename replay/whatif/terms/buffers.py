"""`buffers=0`: DDP does not send the buffers of its model before forward passes."""

from dataclasses import replace

from esprof.replay.dfg import Edge
from esprof.replay.whatif.communication.buffers import SentBuffers
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import not_recorded, required, without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_buffers(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    sent, share = SentBuffers.of(now.run, dfg)
    nothing = not_recorded(dfg, "broadcast before a forward pass of DDP")
    communication = required(sent, nothing)
    waits = (dfg.pred_kind == Edge.RENDEZVOUS) & communication[dfg.pred_target]
    now = replace(now, dfg=edits.shorten(edits.cut(dfg, waits), communication, 0))
    return without_share(now, terms, share, nothing)


TERM = Kind(
    name="buffers",
    examples=("buffers=0",),
    meaning="DDP sends no buffers of its model before forward passes, and no rank waits for another there.",
    needs="Broadcasts before forward passes of DDP that are matched on all their ranks.",
    assumes="The buffers of all ranks stay equal without that, or may differ.",
    effect=Edit(TermPhase.REMOVE, _without_buffers),
    value=zero,
)
