"""When each rank arrives at each collective of a mean steady-state step: the heat map of the report."""

from collections import defaultdict

import msgspec
import numpy as np

from esprof.core.types import Bytes, Rank, us
from esprof.replay.dfg import Cls
from esprof.replay.ranks.arrivals import Arrivals, arrivals
from esprof.replay.replayed import Replayed
from esprof.run.collective_names import collective_word

MAX_COLLECTIVES = 40
"""Most rows; those with the greatest spread of arrivals."""


class ArrivalRow(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of the step; means over the steps that have it."""

    name: str
    bytes: Bytes | None
    late_us: tuple[float | None, ...]
    """How long after the first rank each of `ArrivalMap.ranks` arrived; None for ranks that take no part."""
    last: Rank
    """The rank that arrives last in the mean, of all ranks."""
    spread_us: float
    """How long after the first rank it arrives."""


class ArrivalMap(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives in their order in the step, at most `MAX_COLLECTIVES`, and the drawn ranks."""

    ranks: tuple[Rank, ...]
    of_ranks: int
    rows: tuple[ArrivalRow, ...]
    found: int
    """Number of collectives of a step with at least two ranks."""
    widest_us: float
    """The greatest of `spread_us`."""


def arrival_map(replayed: Replayed, ranks: tuple[Rank, ...]) -> ArrivalMap | None:
    """Arrivals of `ranks` relative to the first of all ranks; None if no collective has two ranks."""
    dfg, steady = replayed.built.dfg, replayed.steps.steady
    seen = arrivals(dfg, steady)
    of_number = _communication(replayed)
    groups = _alike(seen, [of_number.get(number, ("collective", -1)) for number in seen.collective.tolist()])
    columns = [dfg.marks.ranks.index(rank) for rank in ranks]
    rows = []
    for (name, size, _, _), members in groups.items():
        arrived = seen.table_ns(members)
        late = (arrived - np.nanmin(arrived, axis=1, keepdims=True)).mean(axis=0)
        last = int(np.nanargmax(late))
        row = ArrivalRow(
            name=name,
            bytes=size if size > 0 else None,
            late_us=tuple(us(float(late[column])) if np.isfinite(late[column]) else None for column in columns),
            last=seen.ranks[last],
            spread_us=us(float(late[last])),
        )
        rows.append(row)
    if not rows:
        return None
    widest = sorted(range(len(rows)), key=lambda number: -rows[number].spread_us)[:MAX_COLLECTIVES]
    return ArrivalMap(
        ranks=ranks,
        of_ranks=len(seen.ranks),
        rows=tuple(rows[number] for number in sorted(widest)),
        found=len(rows),
        widest_us=rows[widest[0]].spread_us,
    )


def _communication(replayed: Replayed) -> dict[int, tuple[str, Bytes]]:
    """Number of each collective -> its name and size, -1 if unknown."""
    dfg = replayed.built.dfg
    nodes = np.flatnonzero((dfg.collective >= 0) & dfg.of(Cls.COMMUNICATION))
    number, first = np.unique(dfg.collective[nodes], return_index=True)
    found = {}
    for collective, node in zip(number.tolist(), nodes[first].tolist(), strict=True):
        label = dfg.label(node)
        found[collective] = (collective_word(label) or label, int(dfg.bytes[node]))
    return found


def _alike(seen: Arrivals, named: list[tuple[str, Bytes]]) -> dict[tuple[str, Bytes, bytes, int], list[int]]:
    """(name, size, members, occurrence in the step) -> rows of `seen`, in the order in which they come in a step.

    Collectives of one rank only are left out: nobody waits there.
    """
    counts: dict[tuple[int, str, Bytes, bytes], int] = defaultdict(int)
    found: dict[tuple[str, Bytes, bytes, int], list[int]] = defaultdict(list)
    for row in np.lexsort((seen.first_ns(), seen.step)).tolist():
        members = seen.column[seen.begin[row] : seen.begin[row + 1]]
        if len(members) < 2:
            continue
        name, size = named[row]
        who = members.tobytes()
        occurrence = counts[int(seen.step[row]), name, size, who]
        counts[int(seen.step[row]), name, size, who] += 1
        found[name, size, who, occurrence].append(row)
    return found
