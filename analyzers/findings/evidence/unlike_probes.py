"""ESP905: the job's collectives are slower, or faster, than the measured curves of `esprof probe`."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.collectives import SteadyStateCollectives, steady_collectives
from esprof.core import readable
from esprof.core.readable import decimal
from esprof.core.types import Rank
from esprof.replay.whatif.communication.probed import sweep_of
from esprof.run.collective_names import collective_word

ACCEPTED_RATIOS = (0.8, 1.25)
"""Accepted range of the median ratio of recorded to measured time."""

MIN_COLLECTIVES = 8
"""Least number of collectives of a kind for a comparison."""

_MAX_OVERLAP_NS = 20_000
"""Longest overlap of two collectives that count as consecutive: ranks do not leave a collective at the same time."""


def unlike_probes(case: Case) -> Iterator[Cause]:
    """Kinds of collectives whose recorded times differ from their measured curve at the same sizes."""
    if case.run.probes is None:
        return
    sent = steady_collectives(case.replayed)
    for (word, ranks), nodes in _isolated_by_kind(sent).items():
        sweep = sweep_of(case.run.probes, word, ranks)
        if sweep is None:
            continue
        curve, sizes = sweep.curve(), sent.dfg.bytes[nodes]
        is_covered = np.array([curve.holds(size) for size in sizes.tolist()], bool)
        if np.count_nonzero(is_covered) < MIN_COLLECTIVES:
            continue
        expected = np.array([curve.at(size) for size in sizes[is_covered].tolist()])
        low, median, high = np.quantile(sent.dfg.dur_ns[nodes[is_covered]] / expected, (0.25, 0.5, 0.75)).tolist()
        # Both quartiles must lie on the same side of the curve, so that scatter alone is not reported.
        if ACCEPTED_RATIOS[0] <= median <= ACCEPTED_RATIOS[1] or low < 1 < high:
            continue
        yield Cause(
            id="ESP905",
            title=f"{word} takes {decimal(median)}× the time that esprof probe measured for these sizes",
            ranks=ranks,
            confidence="medium",
            evidence={
                "collective": Evidence(word),
                "recorded_over_measured": Evidence(round(median, 3)),
                "quartiles": Evidence(f"{decimal(low)} to {decimal(high)}"),
                "collectives": Evidence(int(np.count_nonzero(is_covered))),
                "sizes": Evidence(
                    f"{readable.size(sizes[is_covered].min())} to {readable.size(sizes[is_covered].max())}"
                ),
            },
            advice="Predictions that use the curves (network=, bucket_mb=) are unreliable for this job. Run `esprof "
            "probe` again on the job's machines and links while they are otherwise idle. `esprof probe --show` "
            "shows how much concurrent compute slows collectives down.",
        )


def _isolated_by_kind(sent: SteadyStateCollectives) -> dict[tuple[str, tuple[Rank, ...]], np.ndarray]:
    """(kind of collective, its ranks) -> nodes of the collectives that overlap no other one on any of their ranks.

    One node for each collective: that of its lowest rank. Collectives of unknown size are excluded.
    """
    dfg = sent.dfg
    begin, end = dfg.recorded_ns[sent.node], (dfg.recorded_ns + dfg.dur_ns)[sent.node]
    overlapping = np.zeros(len(sent.node), bool)
    for rank in dfg.marks.ranks:
        mine = np.flatnonzero(dfg.rank[sent.node] == rank)
        order = mine[np.argsort(begin[mine], kind="stable")]
        overlaps = np.maximum.accumulate(end[order])[:-1] > begin[order][1:] + _MAX_OVERLAP_NS
        overlapping[order[1:][overlaps]] = overlapping[order[:-1][overlaps]] = True
    overlapping_numbers = np.unique(dfg.collective[sent.node[overlapping]])
    found: dict[tuple[str, tuple[Rank, ...]], list[int]] = {}
    by_number: dict[int, list[int]] = {}
    for node in sent.node.tolist():
        by_number.setdefault(int(dfg.collective[node]), []).append(node)
    for number, nodes in by_number.items():
        word = collective_word(dfg.label(nodes[0]))
        if number not in overlapping_numbers and dfg.bytes[nodes[0]] > 0 and word is not None:
            ranks = tuple(sorted(dfg.rank[nodes].tolist()))
            found.setdefault((word, ranks), []).append(nodes[0])
    return {kind: np.array(nodes) for kind, nodes in found.items()}


_PAGES = (
    Page(
        "ESP905",
        "Collectives differ from the measured curves",
        "The run has measured curves of its collectives (`esprof probe`), and the recorded collectives take clearly "
        "more or less time than the curves predict for their sizes. Collectives that overlap another one on the "
        "same rank are excluded.",
        "`recorded over measured` is the median ratio over `collectives`, with its `quartiles` and their `sizes`.",
        "None: it shows how reliable predictions from the curves are.",
        "Probe the job again on its machines and links while they are otherwise idle. Collectives that overlap "
        "compute are slower than the curve of an idle link: `esprof probe --show` shows by how much.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unlike_probes)
