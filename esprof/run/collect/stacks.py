"""What Python did while nothing was recorded: samples of the training thread's stack, and the silences that they tell of."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from esprof.core.types import Ns
from esprof.run.collect.notes import Caller, MarkedStage, RankNotes, RankRows, Sample
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.schema import SAMPLES, STACKS, Table, table
from esprof.run.stacks import MIN_SILENCE_NS, MIN_SILENCE_SAMPLED_NS, SourceLocation, location_of

_BACKWARD = ": _engine_run_backward\n"
"""How the line ends that waits for a backward pass, where others follow: hooks and functions written in Python."""


def samples_of(notes: RankNotes, rows: RankRows) -> Table:
    """The `samples` table of one rank, by time. A sample whose stack was not noted has none."""
    columns: dict[str, Any] = {
        name: np.array([getattr(sample, name) for sample in rows.samples], np.int64)
        for name in Sample.__struct_fields__
        if name != "stack"
    }
    # A stack is long, and most samples have one that others have: each text is made and kept once.
    numbers, codes = np.unique(np.array([row.stack for row in rows.samples], np.int64), return_inverse=True)
    texts = [_text(notes.callers, number) for number in numbers.tolist()]
    known = np.array([text is not None for text in texts], bool)
    location = np.cumsum(known) - 1
    columns["stack"] = pa.DictionaryArray.from_arrays(
        pa.array(location[codes].astype(np.int32), mask=~known[codes]), [text for text in texts if text is not None]
    )
    return table(columns, SAMPLES)


def _text(callers: Mapping[int, Caller], number: int) -> str | None:
    """The stack whose innermost line is that of this number; None where one of its lines was not noted."""
    lines = []
    while number:
        caller = callers.get(number)
        if caller is None:
            return None
        lines.append(f"{caller.file}({caller.line}): {caller.function}".replace("\n", " "))
        # A line is noted after the one that called it: whatever says otherwise would lead in a circle.
        number = caller.caller if caller.caller < number else 0
    return "\n".join(reversed(lines)) or None


@dataclass(frozen=True)
class Silence:
    """A stretch of the training thread in which no operation began or ended."""

    before: str
    """The top-level operation before it, or the one that it lies in."""
    after: str | None
    """The top-level operation behind it; None where it lies in one."""
    start_ns: Ns
    end_ns: Ns


def stacks_of(events: Table, samples: Table, stages: Sequence[MarkedStage]) -> Table:
    """The `stacks` table of one rank: for each silence of its main thread a row for each place that Python was at.

    Inside an operation only what a backward pass calls is listed: all else is the operation's own work. Garbage
    collections, which are among the rank's `stages`, count as what the line called that was seen next.
    """
    main = events.where(np.array([role == "main" for role in events.texts("thread_role")], bool))
    looks = _Looks(samples, [(stage.start_ns, stage.end_ns) for stage in stages if stage.name == GARBAGE_COLLECTION])
    rows = [(gap.before, gap.after, *row) for gap in silences(main) for row in looks.during(gap)]
    return table(dict(zip(STACKS.names, zip(*rows, strict=True), strict=False)) if rows else {}, STACKS)


def silences(main: Table) -> Iterator[Silence]:
    """Silences longer than MIN_SILENCE_NS between the operations of a thread, in order of time."""
    operations = main.where(main.is_kind("op", "runtime", "loader"))
    if not len(operations):
        return
    names, start = operations.texts("name"), operations.ints("start_ns")
    end = start + operations.ints("dur_ns")
    moments = np.concatenate([start, end])
    opens = np.arange(len(moments)) < len(start)
    order = np.lexsort((opens, moments))  # At the same moment one operation ends before the next begins.
    moments, depth = moments[order], np.cumsum(np.where(opens[order], 1, -1))
    # Rows are sorted by start, so that the n-th beginning is that of row n.
    outermost = np.flatnonzero((depth == 1) & opens[order])
    top = (np.cumsum(opens[order]) - 1)[outermost]
    for at in np.flatnonzero(np.diff(moments) > MIN_SILENCE_NS).tolist():
        latest = int(np.searchsorted(outermost, at, side="right")) - 1
        before = names[top[latest]] or ""
        after = (names[top[latest + 1]] or "") if depth[at] == 0 else None
        yield Silence(before, after, int(moments[at]), int(moments[at + 1]))


class _Looks:
    """The samples of one thread."""

    def __init__(self, samples: Table, collections: Sequence[tuple[Ns, Ns]]) -> None:
        self._at, self._dur, self._cpu = (samples.ints(column) for column in ("at_ns", "dur_ns", "cpu_ns"))
        spans = np.array(sorted(collections), np.int64).reshape(-1, 2)
        self._collecting_from, self._collecting_until = spans[:, 0], spans[:, 1]
        self._code, texts = samples.codes("stack")
        self._locations = [location_of(text) for text in texts]
        self._is_called_back = [_BACKWARD in text for text in texts]

    def during(self, gap: Silence) -> list[tuple[str | None, str | None, Ns, Ns | None]]:
        """(frame, call, how long, how much of that the thread ran), ns, of each place that it was at during `gap`."""
        first, last = np.searchsorted(self._at, [gap.start_ns, gap.end_ns], side="right").tolist()
        is_sampled = gap.end_ns - gap.start_ns >= MIN_SILENCE_SAMPLED_NS
        if self._is_behind(gap, first, last):
            last += 1
        took: dict[SourceLocation, float] = defaultdict(float)
        ran: dict[SourceLocation, float] = defaultdict(float)
        collecting = self._collecting(gap)
        for look in range(first, last):
            code, dur = int(self._code[look]), int(self._dur[look])
            inside = min(int(self._at[look]), gap.end_ns) - max(int(self._at[look]) - dur, gap.start_ns)
            if not is_sampled:  # The look tells of all of it.
                inside = (gap.end_ns - gap.start_ns) // (last - first)
            if code < 0 or inside <= 0 or (gap.after is None and not self._is_called_back[code]):
                continue
            location = self._locations[code]
            # The collector holds Python's lock: the look came right behind it.
            collected = min(inside, collecting)
            collecting -= collected
            for where, ns in (
                (SourceLocation(location.frame, GARBAGE_COLLECTION), collected),
                (location, inside - collected),
            ):
                if ns:
                    took[where] += ns
                    ran[where] += self._cpu[look] * ns / max(dur, 1)
        if not took and gap.after is not None:
            return [(None, None, gap.end_ns - gap.start_ns, None)]
        return [(location.frame, location.call, round(ns), round(ran[location])) for location, ns in took.items()]

    def _is_behind(self, gap: Silence, first: int, last: int) -> bool:
        """Whether the look that came first behind `gap` tells of it. Those from `first` to before `last` came during it."""
        if last == len(self._at):
            return False
        if gap.end_ns - gap.start_ns < MIN_SILENCE_SAMPLED_NS:
            # Operations release Python's lock: looks come when the next one has begun.
            return first == last and bool(self._at[last] - gap.end_ns <= MIN_SILENCE_SAMPLED_NS)
        # Python's lock was held through most of the silence.
        return bool(self._at[last] - self._dur[last] <= (gap.start_ns + gap.end_ns) / 2)

    def _collecting(self, gap: Silence) -> Ns:
        """How long garbage was collected during `gap`, ns."""
        # One thread collects one after the other, so that their ends ascend as well.
        first = int(np.searchsorted(self._collecting_until, gap.start_ns, side="right"))
        last = int(np.searchsorted(self._collecting_from, gap.end_ns))
        begin = np.maximum(self._collecting_from[first:last], gap.start_ns)
        return int((np.minimum(self._collecting_until[first:last], gap.end_ns) - begin).sum())
