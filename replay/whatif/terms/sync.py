"""`sync=0`: CPU threads that do not wait for their device."""

from dataclasses import replace

import numpy as np

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, required, waits_for_device
from esprof.replay.whatif.loading.loader_evidence import at_their_pace
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_waits(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        dfg = now.dfg
        waits = waits_for_device(dfg) & of_ranks(now, term)[dfg.pred_target]
        required(waits, "no call that waits for its device was recorded in these steps")
        changed = np.unique(dfg.rank[dfg.pred_target[waits]])
        dfg = edits.cut(dfg, waits)
        if now.has_recorded_nodes:
            dfg = at_their_pace(dfg, now.recorded, changed)
        now = replace(now, dfg=dfg)
    return now.noted("assumes that values read from the device are available at once")


TERM = Kind(
    name="sync",
    examples=("sync=0", "rank3.sync=0"),
    meaning="CPU threads do not wait for their device: `.item()`, `.cpu()`, `nonzero` and synchronisations return at "
    "once. Waits for room in the launch queue, for the allocator and for other ranks stay, and batches of workers of "
    "these ranks come no sooner after one another.",
    needs="Blocking calls in the trace whose cause was recorded or inferred.",
    assumes="The value that a call reads is available at once.",
    effect=Edit(TermPhase.REMOVE, _without_waits),
    value=zero,
    scoped=True,
)
