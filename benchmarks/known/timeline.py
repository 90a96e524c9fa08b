"""Result of a run: begin and end of all recorded work."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.known.program import Ns


@dataclass(slots=True)
class Row:
    """A recorded row. `lane` is the name of a CPU thread or the number of a stream; `external` is the number of the
    operation, which its calls share. `waits` is the stream and the call that recorded the awaited event."""

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
    """`steps` holds, for each rank, the begin of its steps and the end of the last one; `collectives` holds the begin
    (arrival of the last member) and end of each."""

    rows: list[Row]
    steps: list[list[tuple[int | None, Ns]]]
    collectives: list[tuple[Ns, Ns]]

    def step_ns(self, without: Collection[int] = ()) -> dict[int, Ns]:
        """Duration of each step, ns: from its begin on the last rank to its end on the last rank. Ranks `without` are
        ignored."""
        return {number: end - begin for number, (begin, end) in self.spans(without).items()}

    def spans(self, without: Collection[int] = ()) -> dict[int, tuple[Ns, Ns]]:
        """Begin and end of each step on the last rank, ns."""
        marks = [one for rank, one in enumerate(self.steps) if rank not in without]
        begins = [max(one[at][1] for one in marks) for at in range(len(marks[0]))]
        numbers = [number for number, _ in marks[0]]
        return {number: (begins[at], begins[at + 1]) for at, number in enumerate(numbers[:-1]) if number is not None}

    def optimizer_spans(self, first: int, without: Collection[int] = ()) -> dict[int, tuple[Ns, Ns]]:
        """Begin and end, on the last rank, of each step that ends with an optimizer, numbered from 0, ns.

        The first begins with the first recorded row of step `first`. Without an optimizer all rows are one step. Ranks
        `without` are ignored.
        """
        opened = [next(at for number, at in marks if number == first) for marks in self.steps]
        marks = []
        for rank in set(range(len(self.steps))).difference(without):
            rows = [row for row in self.rows if row.rank == rank and row.start >= opened[rank]]
            ends = sorted(row.end for row in rows if row.name.startswith("Optimizer.step#"))
            marks.append([min(row.start for row in rows), *(ends or [max(row.end for row in rows)])])
        boundaries = [max(at) for at in zip(*marks, strict=False)]
        return dict(enumerate(pairwise(boundaries)))
