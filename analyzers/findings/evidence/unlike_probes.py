"""ESP905: the job's transfers take longer, or shorter, than was measured of such transfers."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.transfers import SteadyStateCollectives, transfers
from esprof.core import readable
from esprof.core.readable import decimal
from esprof.core.types import Rank
from esprof.replay.whatif.communication.probed import sweep_of
from esprof.run.collective_names import collective_word

TIMES_AS_PROBED = (0.8, 1.25)
"""From where to where the median of recorded over measured time may lie."""

MIN_TRANSFERS = 8
"""Transfers of a kind by which it is judged."""

_OVERLAP_NS = 20_000
"""By how much two transfers may overlap and count as one after the other: ranks leave a collective one after the other."""


def unlike_probes(case: Case) -> Iterator[Cause]:
    """Collectives whose recorded transfers are not what their measured curve says of these sizes."""
    if case.run.probes is None:
        return
    moved = transfers(case.replayed)
    for (word, ranks), nodes in _alone_by_kind(moved).items():
        sweep = sweep_of(case.run.probes, word, ranks)
        if sweep is None:
            continue
        curve, sizes = sweep.curve(), moved.dfg.bytes[nodes]
        told = np.array([curve.holds(size) for size in sizes.tolist()], bool)
        if np.count_nonzero(told) < MIN_TRANSFERS:
            continue
        expected = np.array([curve.at(size) for size in sizes[told].tolist()])
        low, median, high = np.quantile(moved.dfg.dur_ns[nodes[told]] / expected, (0.25, 0.5, 0.75)).tolist()
        # Half of the transfers at least lie on the same side of the curve, whatever their scatter.
        if TIMES_AS_PROBED[0] <= median <= TIMES_AS_PROBED[1] or low < 1 < high:
            continue
        yield Cause(
            id="ESP905",
            title=f"Transfers of {word} take {decimal(median)}× what was measured of their sizes",
            ranks=ranks,
            confidence="medium",
            evidence={
                "collective": Evidence(word),
                "recorded_over_measured": Evidence(round(median, 3)),
                "quartiles": Evidence(f"{decimal(low)} to {decimal(high)}"),
                "transfers": Evidence(int(np.count_nonzero(told))),
                "sizes": Evidence(f"{readable.size(sizes[told].min())} to {readable.size(sizes[told].max())}"),
            },
            advice="What rests on the curves (network=, bucket_mb=) does not tell what this job gets: probe it again on the "
            "machines and links that it runs on, with nothing else on them. How much computing beside a transfer slows it, "
            "`esprof probe --show` tells.",
        )


def _alone_by_kind(moved: SteadyStateCollectives) -> dict[tuple[str, tuple[Rank, ...]], np.ndarray]:
    """(collective, its ranks) -> nodes of the transfers of known size with no other of the rank beside them, one for each
    collective: that of its lowest rank."""
    dfg = moved.dfg
    begin, end = dfg.recorded_ns[moved.node], (dfg.recorded_ns + dfg.dur_ns)[moved.node]
    crowded = np.zeros(len(moved.node), bool)
    for rank in dfg.marks.ranks:
        mine = np.flatnonzero(dfg.rank[moved.node] == rank)
        order = mine[np.argsort(begin[mine], kind="stable")]
        overlaps = np.maximum.accumulate(end[order])[:-1] > begin[order][1:] + _OVERLAP_NS
        crowded[order[1:][overlaps]] = crowded[order[:-1][overlaps]] = True
    not_alone = np.unique(dfg.collective[moved.node[crowded]])
    found: dict[tuple[str, tuple[Rank, ...]], list[int]] = {}
    by_number: dict[int, list[int]] = {}
    for node in moved.node.tolist():
        by_number.setdefault(int(dfg.collective[node]), []).append(node)
    for number, nodes in by_number.items():
        word = collective_word(dfg.label(nodes[0]))
        if number not in not_alone and dfg.bytes[nodes[0]] > 0 and word is not None:
            ranks = tuple(sorted(dfg.rank[nodes].tolist()))
            found.setdefault((word, ranks), []).append(nodes[0])
    return {kind: np.array(nodes) for kind, nodes in found.items()}


_PAGES = (
    Page(
        "ESP905",
        "Transfers unlike those that were measured",
        "The run holds measured curves of its collectives (`esprof probe`), and the transfers that were recorded of the job "
        "take clearly more or less time than these say of their sizes. Transfers beside another of the same rank are left "
        "out.",
        "`recorded_over_measured`: the median over `transfers`, and its `quartiles`; their `sizes`.",
        "None: it tells how far to trust what rests on the curves.",
        "Probe the job again where it runs, with nothing else on the machines and links. Transfers that computing beside "
        "them slows down are slower than the curve of a link at rest: `esprof probe --show` tells by how much.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unlike_probes)
