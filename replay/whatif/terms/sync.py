"""`sync=0`: CPU threads that do not wait for their device."""

from dataclasses import replace

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, required, waits_for_device
from esprof.replay.whatif.loading.loader_evidence import at_their_pace
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_waits(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    if now.has_recorded_nodes:
        now = replace(now, dfg=at_their_pace(now.dfg, now.recorded))
    for term in terms:
        dfg = now.dfg
        waits = waits_for_device(dfg) & of_ranks(now, term)[dfg.pred_target]
        required(waits, "no call that waits for its device was recorded in these steps")
        now = replace(now, dfg=edits.cut(dfg, waits))
    return now.noted("assumes that values read from the device are available at once")


TERM = Kind(
    name="sync",
    examples=("sync=0", "rank3.sync=0"),
    meaning="CPU threads do not wait for their device: `.item()`, `.cpu()`, `nonzero` and synchronisations return at "
    "once. Waits for room in the launch queue, for the allocator and for other ranks stay, and batches of workers come no "
    "sooner after one another.",
    needs="Blocking calls in the trace whose cause was recorded or inferred.",
    assumes="The value that a call reads is available at once.",
    effect=Edit(TermPhase.REMOVE, _without_waits),
    value=zero,
    scoped=True,
)
