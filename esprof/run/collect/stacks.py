"""The tables of stack samples and of Python code in silences: gaps without a recorded operation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from esprof.core.types import Ns
from esprof.run.collect.notes import Caller, RankNotes
from esprof.run.collect.rolled_rows import MarkedStage, RankRows, Sample
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.schema import SAMPLES, STACKS, Table, table
from esprof.run.stacks import MIN_SILENCE_NS, MIN_SILENCE_SAMPLED_NS, SourceLocation, location_of

_BACKWARD = ": _engine_run_backward\n"
"""End of the line that waits for a backward pass, if it called further lines: hooks and Python functions."""


def samples_of(notes: RankNotes, rows: RankRows) -> Table:
    """Return the `samples` table of one rank, by time. The stack is null if it was not recorded."""
    columns: dict[str, Any] = {
        name: np.array([getattr(sample, name) for sample in rows.samples], np.int64)
        for name in Sample.__struct_fields__
        if name != "stack"
    }
    # Stacks are long and repeat: each text is built and stored once.
    numbers, codes = np.unique(np.array([row.stack for row in rows.samples], np.int64), return_inverse=True)
    texts = [_text(notes.callers, number) for number in numbers.tolist()]
    known = np.array([text is not None for text in texts], bool)
    location = np.cumsum(known) - 1
    columns["stack"] = pa.DictionaryArray.from_arrays(
        pa.array(location[codes].astype(np.int32), mask=~known[codes]), [text for text in texts if text is not None]
    )
    return table(columns, SAMPLES)


def _text(callers: Mapping[int, Caller], number: int) -> str | None:
    """Return the stack with this innermost line; None if one of its lines was not recorded."""
    lines = []
    while number:
        caller = callers.get(number)
        if caller is None:
            return None
        lines.append(f"{caller.file}({caller.line}): {caller.function}".replace("\n", " "))
        # A caller has a smaller number than its callee; a corrupt file could contain a cycle.
        number = caller.caller if caller.caller < number else 0
    return "\n".join(reversed(lines)) or None


_MAX_LOCATIONS = 8
"""Source locations among which a late sample is divided."""


@dataclass(frozen=True)
class Silence:
    """A period of the training thread in which no operation started or ended."""

    before: str
    """The preceding top-level operation, or the one that contains the silence."""
    after: str | None
    """The following top-level operation; None if an operation contains the silence."""
    start_ns: Ns
    end_ns: Ns

    @property
    def name(self) -> tuple[str, str | None]:
        return self.before, self.after

    @property
    def is_long(self) -> bool:
        """Whether each part of it has samples of its own."""
        return self.end_ns - self.start_ns >= MIN_SILENCE_SAMPLED_NS


def stacks_of(events: Table, samples: Table, stages: Sequence[MarkedStage]) -> Table:
    """Return the `stacks` table of one rank: one row per silence of the main thread and source location in it.

    Inside an operation only code that a backward pass calls is listed: all other time is the operation's own. Garbage
    collections, which `stages` contains, count as calls of the next sampled line.
    """
    main = events.where(events.matches("thread_role", "main".__eq__))
    sampled = _StackSamples(
        samples, [(stage.start_ns, stage.end_ns) for stage in stages if stage.name == GARBAGE_COLLECTION]
    )
    gaps = [*silences(main)]
    inside = sampled.inside(gaps)
    rows = [(*gap.name, *row) for gap in gaps for row in sampled.during(gap, inside.get(gap.name, {}))]
    return table(dict(zip(STACKS.names, zip(*rows, strict=True), strict=False)) if rows else {}, STACKS)


def silences(main: Table) -> Iterator[Silence]:
    """Yield silences longer than MIN_SILENCE_NS between the operations of a thread, by time."""
    operations = main.where(main.is_kind("op", "runtime", "loader"))
    if not len(operations):
        return
    names, start = operations.texts("name"), operations.ints("start_ns")
    end = start + operations.ints("dur_ns")
    moments = np.concatenate([start, end])
    opens = np.arange(len(moments)) < len(start)
    order = np.lexsort((opens, moments))  # At equal times, ends precede starts.
    moments, depth = moments[order], np.cumsum(np.where(opens[order], 1, -1))
    # Rows are sorted by start: the n-th start is that of row n.
    outermost = np.flatnonzero((depth == 1) & opens[order])
    top = (np.cumsum(opens[order]) - 1)[outermost]
    for at in np.flatnonzero(np.diff(moments) > MIN_SILENCE_NS).tolist():
        latest = int(np.searchsorted(outermost, at, side="right")) - 1
        before = names[top[latest]] or ""
        after = (names[top[latest + 1]] or "") if depth[at] == 0 else None
        yield Silence(before, after, int(moments[at]), int(moments[at + 1]))


class _StackSamples:
    """The stack samples of one thread."""

    def __init__(self, samples: Table, collections: Sequence[tuple[Ns, Ns]]) -> None:
        self._at, self._dur, self._cpu = (samples.ints(column) for column in ("at_ns", "dur_ns", "cpu_ns"))
        spans = np.array(sorted(collections), np.int64).reshape(-1, 2)
        self._collecting_from, self._collecting_until = spans[:, 0], spans[:, 1]
        self._code, texts = samples.codes("stack")
        self._locations = [location_of(text) for text in texts]
        self._is_called_back = [_BACKWARD in text for text in texts]

    def inside(self, gaps: Iterable[Silence]) -> Mapping[tuple[str, str | None], Mapping[SourceLocation, float]]:
        """Return the most frequent source locations of the samples during long silences of each name, and their shares."""
        count: dict[tuple[str, str | None], Counter[SourceLocation]] = defaultdict(Counter)
        for gap in gaps:
            first, last = self._between(gap) if gap.is_long else (0, 0)
            count[gap.name].update(
                self._locations[code] for code in self._code[first:last].tolist() if self._counts(code, gap)
            )
        most = {name: dict(seen.most_common(_MAX_LOCATIONS)) for name, seen in count.items()}
        return {
            name: {location: times / sum(seen.values()) for location, times in seen.items()}
            for name, seen in most.items()
        }

    def _between(self, gap: Silence) -> tuple[int, int]:
        """Return the first sample during `gap`, and the first after it."""
        first, last = np.searchsorted(self._at, [gap.start_ns, gap.end_ns], side="right").tolist()
        return first, last

    def _counts(self, code: int, gap: Silence) -> bool:
        """Whether a stack was recorded, and its last lines do not belong to an operation that contains the silence."""
        return code >= 0 and (gap.after is not None or self._is_called_back[code])

    def during(
        self, gap: Silence, inside: Mapping[SourceLocation, float]
    ) -> list[tuple[str | None, str | None, Ns, Ns | None]]:
        """Return (frame, call, duration, CPU time) of each source location during `gap`, ns.

        A sample that had to wait for the GIL or a CPU until a long silence was over shows a later line. What it stands for
        was spent where samples were taken in such silences, `inside`, if there are any and none of them shows that line.
        """
        first, last = self._between(gap)
        taken_later = last if self._next_sample_counts(gap, first, last) else None
        if taken_later is not None:
            last += 1
        took: dict[SourceLocation, float] = defaultdict(float)
        ran: dict[SourceLocation, float] = defaultdict(float)
        collecting = self._collecting(gap)
        for row in range(first, last):
            code, dur = int(self._code[row]), int(self._dur[row])
            spent = min(int(self._at[row]), gap.end_ns) - max(int(self._at[row]) - dur, gap.start_ns)
            if not gap.is_long:  # The samples represent the whole silence.
                spent = (gap.end_ns - gap.start_ns) // (last - first)
            if spent <= 0 or not self._counts(code, gap):
                continue
            location = self._locations[code]
            # The collector holds the GIL, so the sample follows immediately after it.
            collected = min(spent, collecting)
            collecting -= collected
            is_elsewhere = row == taken_later and gap.is_long and inside and location not in inside
            rest = inside if is_elsewhere else {location: 1.0}
            parts = [(where, share * (spent - collected)) for where, share in rest.items()]
            for where, ns in ((SourceLocation(location.frame, GARBAGE_COLLECTION), collected), *parts):
                if ns:
                    took[where] += ns
                    ran[where] += self._cpu[row] * ns / max(dur, 1)
        if not took and gap.after is not None:
            return [(None, None, gap.end_ns - gap.start_ns, None)]
        return [(location.frame, location.call, round(ns), round(ran[location])) for location, ns in took.items()]

    def _next_sample_counts(self, gap: Silence, first: int, last: int) -> bool:
        """Whether the first sample after `gap` represents it. The samples `first` to `last` - 1 were taken during it."""
        if last == len(self._at):
            return False
        if not gap.is_long:
            # Operations release the GIL, so a sample may be delayed until the next one has started.
            return first == last and bool(self._at[last] - gap.end_ns <= MIN_SILENCE_SAMPLED_NS)
        # The GIL was held during most of the silence.
        return bool(self._at[last] - self._dur[last] <= (gap.start_ns + gap.end_ns) / 2)

    def _collecting(self, gap: Silence) -> Ns:
        """Return the time of garbage collections during `gap`, ns."""
        # Collections of one thread do not overlap, so their ends are sorted too.
        first = int(np.searchsorted(self._collecting_until, gap.start_ns, side="right"))
        last = int(np.searchsorted(self._collecting_from, gap.end_ns))
        begin = np.maximum(self._collecting_from[first:last], gap.start_ns)
        return int((np.minimum(self._collecting_until[first:last], gap.end_ns) - begin).sum())
