"""Runs with labels of samples, and with scores of models."""

from collections.abc import Mapping, Sequence

from esprof.run.run import Run
from esprof.run.schema import LABELS, TRAVELS, Table, table
from tests.cases.graph import ddp_rank, run_of

Travel = tuple[int, int, float, float]
"""Step, steps since the last average, scores of the own model and of others."""


def labelled(labels: Mapping[int, Mapping[int, int]], of: Run | None = None) -> Run:
    """A run, by default of two ranks, with numbers of samples by rank and label."""
    tables = {
        rank: table({"label": list(counts), "samples": list(counts.values())}, LABELS)
        for rank, counts in labels.items()
    }
    return _with("labels", tables, of)


def travelled(travels: Mapping[int, Sequence[Travel]], of: Run | None = None) -> Run:
    """A run, by default of two ranks, with comparisons of models by rank."""
    names = ("step", "every", "own", "foreign")
    tables = {
        rank: table({name: [row[at] for row in rows] for at, name in enumerate(names)}, TRAVELS)
        for rank, rows in travels.items()
    }
    return _with("travels", tables, of)


def _with(name: str, tables: Mapping[int, Table], of: Run | None) -> Run:
    run = of or run_of({0: ddp_rank(), 1: ddp_rank()})
    return Run(run.meta, lambda one, rank: tables.get(rank) if one == name else run.recorded(one, rank))
