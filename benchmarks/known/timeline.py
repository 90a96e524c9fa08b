"""What came of a run: when everything began and ended."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.known.program import Ns


@dataclass(slots=True)
class Row:
    """Something recorded. `lane` is the name of a CPU thread or the number of a stream; `external` numbers operations, and
    what they called has the number of theirs. `waits` names the stream and the call that recorded the event waited for."""

    rank: int
    lane: str | int
    category: str
    name: str
    start: Ns
    end: Ns
    correlation: int = 0
    external: int = 0
    args: dict[str, object] = field(default_factory=dict)
    waits: tuple[int, int] | None = None


@dataclass
class Timeline:
    """`steps` holds, for each rank, when its steps began and the last one ended; `transfers` when each began (its last
    member came) and ended."""

    rows: list[Row]
    steps: list[list[tuple[int | None, Ns]]]
    transfers: list[tuple[Ns, Ns]]

    def step_ns(self, without: Collection[int] = ()) -> dict[int, Ns]:
        """Duration of each step: from when the last rank begins it to when the last rank ends it. Ranks `without` do not
        count."""
        return {number: end - begin for number, (begin, end) in self.spans(without).items()}

    def spans(self, without: Collection[int] = ()) -> dict[int, tuple[Ns, Ns]]:
        """When each step began and ended, by the last rank."""
        marks = [one for rank, one in enumerate(self.steps) if rank not in without]
        begins = [max(one[at][1] for one in marks) for at in range(len(marks[0]))]
        numbers = [number for number, _ in marks[0]]
        return {number: (begins[at], begins[at + 1]) for at, number in enumerate(numbers[:-1]) if number is not None}

    def optimizer_spans(self, first: int, without: Collection[int] = ()) -> dict[int, tuple[Ns, Ns]]:
        """When each step that an optimizer ends began and ended, by the last rank, from 0 on; the first of them begins with
        what is recorded first, at the step `first`. Without an optimizer it is all one step. Ranks `without` do not
        count."""
        opened = [next(at for number, at in marks if number == first) for marks in self.steps]
        marks = []
        for rank in set(range(len(self.steps))).difference(without):
            rows = [row for row in self.rows if row.rank == rank and row.start >= opened[rank]]
            ends = sorted(row.end for row in rows if row.name.startswith("Optimizer.step#"))
            marks.append([min(row.start for row in rows), *(ends or [max(row.end for row in rows)])])
        borders = [max(at) for at in zip(*marks, strict=False)]
        return dict(enumerate(pairwise(borders)))
