"""Runs of operations that follow one another closely on a thread of a rank: their time in a step, and their line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case
from esprof.analyzers.samples.sampled_lines import Seen, seen_within
from esprof.core.types import Rank
from esprof.run.schema import Table


class OperationRuns(NamedTuple):
    """Runs of operations. Arrays of int64."""

    begin_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray

    @classmethod
    def of(cls, begin_ns: np.ndarray, end_ns: np.ndarray, number: np.ndarray, least: int) -> "OperationRuns":
        """Runs of at least `least` of these operations, ascending; those of a run have the same `number`."""
        _, first, operations = np.unique(number, return_index=True, return_counts=True)
        last, is_run = first + operations - 1, operations >= least
        return cls(begin_ns[first[is_run]], end_ns[last[is_run]], operations[is_run])

    @classmethod
    def none(cls) -> "OperationRuns":
        return cls(*np.zeros((3, 0), np.int64))


@dataclass(frozen=True)
class StepRuns:
    """The runs of all ranks in the steady-state steps."""

    by_rank: Mapping[Rank, OperationRuns]
    took_ns: Mapping[Rank, float]
    """Time in runs in a mean step, ns."""
    worst: Rank
    steps: int
    line: Seen | None
    """The line at which the worst rank was seen most, if samples show it."""

    @classmethod
    def of(cls, case: Case, find: Callable[[Table, tuple[int, ...]], OperationRuns]) -> "StepRuns":
        """`find` gives the runs of a rank in some steps."""
        steps = case.replayed.steps.steady
        runs = {rank: find(case.run.events(rank), steps) for rank in case.replayed.built.dfg.marks.ranks}
        took = {rank: float((of.end_ns - of.begin_ns).sum()) / len(steps) for rank, of in runs.items()}
        worst = max(took, key=lambda rank: took[rank])
        spans = np.stack([runs[worst].begin_ns, runs[worst].end_ns], axis=1)
        return cls(runs, took, worst, len(steps), seen_within(case.job.samples, worst, spans))

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks with at least half the time of the worst."""
        return tuple(rank for rank, took in self.took_ns.items() if took >= self.took_ns[self.worst] / 2)

    @property
    def operations(self) -> dict[Rank, float]:
        """Operations of a mean step in runs."""
        return {rank: of.operations.sum() / self.steps for rank, of in self.by_rank.items()}

    def evidence(self, time: str, count: str, where: str | None) -> dict[str, Evidence]:
        """Time and number of operations of a step under these names, and the line `where`."""
        found = {
            time: by_rank({rank: round(took) for rank, took in self.took_ns.items()}, "ns"),
            count: by_rank({rank: round(number) for rank, number in self.operations.items()}),
        }
        return found | ({"source_line": Evidence(where)} if where else {})
