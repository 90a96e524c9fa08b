"""The tables of the labels that a rank trains on, and of scores of the ranks' models."""

from collections import Counter

from esprof.run.collect.rolled_rows import RankRows
from esprof.run.schema import LABELS, TRAVELS, Table, table


def labels_of(rows: RankRows) -> Table:
    """Return the `labels` table of one rank."""
    counts = Counter[int]()
    for row in rows.labels:
        counts.update(row.counts)
    found = sorted(counts)
    return table({"label": found, "samples": [counts[label] for label in found]}, LABELS)


def travels_of(rows: RankRows) -> Table:
    """Return the `travels` table of one rank."""
    found = sorted(rows.travels, key=lambda row: row.at_ns)
    return table({name: [getattr(row, name) for row in found] for name in TRAVELS.names}, TRAVELS)
