"""`padding=0`: batches hold no tokens that only pad."""

from dataclasses import replace

import numpy as np

from esprof.core.types import NS_PER_US, Ns
from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.whatif.gradients.shared_update import update_ranges
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.padded_tokens import ON_PAIRS, ON_TOKENS, RankPadding, padding_by_rank, shares_on
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.graph.thread_ranges import work_share
from esprof.replay.whatif.scenario import NothingFound, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

_MIN_KERNEL_NS: Ns = 5 * NS_PER_US
_MIN_OPERATION_NS: Ns = 20 * NS_PER_US
"""Durations of kernels, and of operations of CPUs, below which a piece of work does not get shorter with fewer tokens:
starting it takes this long."""


def _without_padding(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg, run = now.dfg, now.run
    padded = padding_by_rank(run, dfg.marks.ranks)
    if not padded:
        raise NothingFound(
            "no step has counts of padding (record with esprof record; it reads masks and token ids of batches)"
        )
    updates = work_share(run, dfg, {rank: update_ranges(run.events(rank)) for rank in dfg.marks.ranks})
    on_pairs, on_tokens = (shares_on(run, dfg, names) * (1 - updates) for names in (ON_PAIRS, ON_TOKENS))
    of_tokens, of_pairs = _waste(dfg, padded)
    least = np.where(dfg.on(LaneKind.STREAM), _MIN_KERNEL_NS, _MIN_OPERATION_NS)
    left = np.rint(dfg.dur_ns * (1 - on_tokens * of_tokens - on_pairs * of_pairs)).astype(np.int64)
    left = np.maximum(left, np.minimum(dfg.dur_ns, least))
    for term in terms:
        nodes = required((left < dfg.dur_ns) & of_ranks(now, term), "the batches of these steps hold no padding")
        now = replace(now, dfg=edits.replace(now.dfg, nodes, left[nodes]))
    if any(not padding.pairs.all() for padding in padded.values()):
        now = now.noted("the lengths of single sequences are unknown: attention gets shorter like all other work")
    return now


def _waste(dfg: Dfg, padded: dict[int, RankPadding]) -> tuple[np.ndarray, np.ndarray]:
    """Share of padding among the tokens, and among the pairs, of the batch of each node, float64[N]. A step without counts
    has the share of all others of its rank."""
    of_tokens, of_pairs = np.zeros(dfg.nodes), np.zeros(dfg.nodes)
    for rank, padding in padded.items():
        mine = dfg.rank == rank
        of_tokens[mine], of_pairs[mine] = padding.waste.of_tokens, padding.waste.of_pairs
        for step, waste in padding.by_step().items():
            here = mine & (dfg.step == step)
            of_tokens[here], of_pairs[here] = waste.of_tokens, waste.of_pairs
    return of_tokens, of_pairs


TERM = Kind(
    name="padding",
    examples=("padding=0", "rank3.padding=0"),
    meaning="Batches hold no tokens that only pad: sequences are packed. Of the recorded time of forward and backward "
    "passes, that of attention shrinks by the share of pairs of tokens with padding, and that of all others by the "
    "share of padding. Optimizers, communication, launches and loaders take as long as before, and so do kernels of up to "
    "5 µs and operations of up to 20 µs.",
    needs="A run of `esprof record` whose batches tell their padding (ESP701).",
    assumes="Passes compute on these tokens only, and attention skips what is masked. The loss is then a mean over tokens, "
    "unless sequences get weights.",
    effect=Edit(TermPhase.REMOVE, _without_padding),
    value=zero,
    scoped=True,
)
