"""Sizes, groups and peers of collectives, from their own arguments or from the CPU call that encloses their launch."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from esprof.run.collective_names import ITEM_BYTES, collective_word, names_a_collective
from esprof.run.groups import Group, group_name, parse_ranks
from esprof.run.kineto.rows import TraceRows
from esprof.run.kineto.scan import MISSING

_FIRST_ITEM = re.compile(rb'\s*\[\s*"([^"]*)"')
_REDUCTION = re.compile(r"ncclDevKernel_(?:AllReduce|ReduceScatter|Reduce)_[A-Za-z]+_([a-z]+\d\w*?)_")
"""Element type in the name of a NCCL reduction. Other kernels need none; older ones (`ncclKernel_…_float`) name one whatever
they move."""

_SIBLINGS = 4
"""Number of calls before a launch that are checked for enclosing it."""


@dataclass(frozen=True)
class Launches:
    """When each row ran and what launched it: its start and end (ns), its thread, and the row of the runtime call that
    launched it, -1 where none is known."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    tid: np.ndarray
    row: np.ndarray


@dataclass(frozen=True)
class Moved:
    """What each collective moved, in the order of the rows asked for. Numbers are int64, MISSING where unknown."""

    collective: list[str | None]
    group: list[str | None]
    dtype: list[str | None]
    coll_seq: np.ndarray
    in_bytes: np.ndarray
    out_bytes: np.ndarray
    is_p2p: np.ndarray
    peer: np.ndarray
    channel: list[str | None]


def moved_by(rows: TraceRows, at: np.ndarray, calls: np.ndarray, launches: Launches, groups: dict[str, Group]) -> Moved:
    """What the collectives in the rows `at` moved.

    `calls` are the rows, sorted by start, that may describe a collective which does not describe itself.
    """
    source, naming = _described_by(rows, at, calls, launches)
    kernels, described = rows.pick(at), rows.pick(source)
    words = _words(kernels, described, rows.pick(naming), naming >= 0)
    dtypes = _dtypes(kernels, described)
    shapes = described.texts("Input Dims").map(_element_count, np.int64, MISSING)
    sent = described.numbers("In msg nelems")
    is_send, is_receive = (np.array([word == wanted for word in words], bool) for wanted in ("send", "recv"))
    return Moved(
        collective=words,
        group=_groups(described, groups),
        dtype=dtypes,
        coll_seq=described.numbers("Seq"),
        in_bytes=_bytes(np.where(sent == MISSING, shapes, sent), dtypes),
        out_bytes=_bytes(described.numbers("Out msg nelems"), dtypes),
        is_p2p=is_send | is_receive,
        peer=np.select([is_send, is_receive], [described.numbers("Dst Rank"), described.numbers("Src Rank")], MISSING),
        channel=[None] * len(at),
    )


def _described_by(
    rows: TraceRows, at: np.ndarray, calls: np.ndarray, launches: Launches
) -> tuple[np.ndarray, np.ndarray]:
    """For each collective the row whose arguments describe it best, and the row of the annotation around its launch that
    names it (-1 where there is none).

    A NCCL kernel may carry no arguments of its own: then the `record_param_comms` call or `nccl:` annotation around its
    launch, found by thread and time, stands in.
    """
    is_described = rows.texts("Collective name").codes >= 0
    is_naming = rows.texts("name").map(names_a_collective, bool)
    source, naming = at.copy(), np.full(len(at), -1)
    open_ones = np.flatnonzero(~is_described[at] & (launches.row[at] >= 0))
    launch = launches.row[at[open_ones]]
    for enclosing in _enclosing(calls, launch, launches):
        # From the latest call to the earliest: of two that describe, or of two that do not, the outer one stays.
        found = enclosing >= 0
        better = found & (is_described[enclosing] | ~is_described[source[open_ones]])
        source[open_ones[better]] = enclosing[better]
        names = found & is_naming[enclosing]
        naming[open_ones[names]] = enclosing[names]
    return source, naming


def _enclosing(calls: np.ndarray, launch: np.ndarray, launches: Launches) -> Iterator[np.ndarray]:
    """Yield for each launch the last call before it on its thread, if it is still open then (else -1); then the last but
    one, and so on."""
    before = np.full((_SIBLINGS, len(launch)), -1)
    for tid in np.unique(launches.tid[launch]).tolist():
        here, mine = launches.tid[launch] == tid, calls[launches.tid[calls] == tid]
        # Index in `mine` of the last call that started before each launch; -1 selects the appended -1.
        last = np.searchsorted(launches.start_ns[mine], launches.start_ns[launch[here]], side="right") - 1
        for back in range(_SIBLINGS):
            before[back, here] = np.append(mine, -1)[np.maximum(last - back, -1)]
    for row in before:
        yield np.where((row >= 0) & (launches.end_ns[row] >= launches.start_ns[launch]), row, -1)


def _words(kernels: TraceRows, described: TraceRows, naming: TraceRows, is_named: np.ndarray) -> list[str | None]:
    own = kernels.texts("name").map(collective_word).tolist()
    names = described.texts("Collective name")
    by_name = naming.texts("name").map(collective_word)
    by_name[~is_named] = None
    words = np.where(names.map(bool, bool), names.map(collective_word), by_name).tolist()
    # A call that only says `send_recv` says no more than the name of its kernel.
    return [other if word in (None, "send_recv") else word for word, other in zip(words, own, strict=True)]


def _dtypes(kernels: TraceRows, described: TraceRows) -> list[str | None]:
    dtypes = described.texts("dtype").map(str).tolist()
    first = described.texts("Input type").map(_first_type).tolist()
    reduced = kernels.texts("name").map(_reduced_type).tolist()
    return [one or another or third for one, another, third in zip(dtypes, first, reduced, strict=True)]


def _groups(described: TraceRows, groups: dict[str, Group]) -> list[str | None]:
    """The group that each call names, by ranks or local name; where it names none, the only group of several ranks."""
    by_ranks = described.texts("Process Group Ranks").map(_name_of_ranks).tolist()
    local = described.texts("Process Group Name").map(str).tolist()
    several = {group.name for group in groups.values() if len(group.ranks) > 1}
    known = {name: group.name for name, group in groups.items()}
    only = several.pop() if len(several) == 1 else None
    return [ranks or (known.get(name) if name else only) for ranks, name in zip(by_ranks, local, strict=True)]


def _name_of_ranks(listed: Iterable[int] | str) -> str | None:
    ranks = parse_ranks(listed if isinstance(listed, str) else list(listed))
    return group_name(ranks) if ranks else None


def _bytes(elements: np.ndarray, dtypes: list[str | None]) -> np.ndarray:
    sizes = np.array([ITEM_BYTES.get((dtype or "").lower(), 0) for dtype in dtypes], np.int64)
    # Garbage may be so large that its product would not fit int64.
    fits = np.abs(elements) <= np.iinfo(np.int64).max // np.maximum(sizes, 1)
    return np.where((elements != MISSING) & (sizes > 0) & fits, elements * sizes, MISSING)


def _first_type(types: bytes) -> str | None:
    """The first item of `Input type`, where it is an element type and not `TensorList`, `Scalar` or nothing."""
    match = _FIRST_ITEM.match(types)
    name = match.group(1).decode(errors="replace") if match else ""
    return name if name.lower() in ITEM_BYTES else None


def _reduced_type(kernel: str) -> str | None:
    match = _REDUCTION.match(kernel)
    return match.group(1) if match else None


def _element_count(shapes: bytes) -> int:
    """Elements of the first operand in `Input Dims`: the product of its innermost list, summed over a tensor list."""
    try:
        dims = msgspec.json.decode(shapes)
        operand = dims[0] if isinstance(dims, list) and dims else None
        if not isinstance(operand, list) or not operand:
            return MISSING
        tensors = operand if isinstance(operand[0], list) else [operand]
        count = int(sum(math.prod(tensor) for tensor in tensors))
        return count if 0 < count < 1 << 63 else MISSING
    except (TypeError, ValueError, OverflowError):
        return MISSING  # Not the nested lists of numbers that it should be.
