"""`sync=0`: CPU threads that do not wait for their device."""

from dataclasses import replace

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, required, waits_for_device
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_waits(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        dfg = now.dfg
        waits = waits_for_device(dfg) & of_ranks(now, term)[dfg.pred_target]
        required(waits, "no call that waits for its device was recorded in these steps")
        now = replace(now, dfg=edits.cut(dfg, waits))
    return now.noted("what CPUs read of their device is taken to be there at once")


TERM = Kind(
    name="sync",
    examples=("sync=0", "rank3.sync=0"),
    meaning="CPU threads do not wait for their device: what `.item()`, `.cpu()`, `nonzero` and synchronisations wait for is "
    "there at once. Room in the launch queue, the allocator, and other ranks are waited for as before.",
    needs="Such calls in the trace whose cause was recorded or found.",
    effect=Edit(TermPhase.REMOVE, _without_waits),
    value=zero,
    scoped=True,
)
