"""What came of a run: when everything began and ended."""

from collections.abc import Collection
from dataclasses import dataclass, field

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

    def window(self, first: int, without: Collection[int] = ()) -> tuple[Ns, Ns]:
        """When all that was recorded from the step `first` on began and ended, by the last rank."""
        opened = [next(at for number, at in marks if number == first) for marks in self.steps]
        begins, ends = dict[int, Ns](), dict[int, Ns]()
        for row in self.rows:
            if row.start >= opened[row.rank] and row.rank not in without:
                begins[row.rank] = min(begins.get(row.rank, row.start), row.start)
                ends[row.rank] = max(ends.get(row.rank, 0), row.end)
        return max(begins.values()), max(ends.values())
