"""The process groups of a table: by their text, or by the place of each rank among data-parallel ranks and stages."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core.errors import InputError
from esprof.core.types import Rank
from esprof.run.collective_names import collective_word
from esprof.run.groups import Group, group_name, parse_ranks
from esprof.run.tables.columns import COLUMNS_PAGE


def groups_of(rows: pa.Table) -> dict[str, Group]:
    """Return groups by their text: a list of ranks, or a name; ranks with a row of that name are its members."""
    used = rows.group_by(["group", "rank"]).aggregate([])
    users: dict[str, set[Rank]] = {}
    for text, rank in zip(used["group"].to_pylist(), used["rank"].to_pylist(), strict=True):
        if text is not None:
            users.setdefault(text, set()).add(rank)
    members = {text: parse_ranks(text) or tuple(sorted(ranks)) for text, ranks in users.items()}
    return {text: Group(name=group_name(ranks), ranks=ranks, description=text) for text, ranks in members.items()}


class _Place(NamedTuple):
    data: int
    stage: int


def with_groups_of_stages(rows: pa.Table) -> tuple[pa.Table, int]:
    """(the rows with the groups that the columns `data` and `stage` tell; number of rows left out).

    Names of operations are those of Megatron. Ranks of a stage share its collectives; the first and the last stage share
    those of the embedding. `forward-send` and `backward-recv` are with the next stage, `forward-recv` and `backward-send`
    with the one before. Without such a stage they transfer nothing, and their rows are left out. Collectives of the layer
    norm are between tensor-parallel ranks, and remain work. Raises InputError for a rank with two places.
    """
    places = _places(rows)
    ranks = {place: rank for rank, place in places.items()}
    used = rows.group_by(["op", "rank"]).aggregate([])
    group: dict[tuple[str, Rank], str | None] = {}
    nowhere: set[tuple[str, Rank]] = set()
    sharing: dict[tuple[str, int], list[tuple[str, Rank]]] = {}
    for op, rank in zip(used["op"].to_pylist(), used["rank"].to_pylist(), strict=True):
        word, place = collective_word(op), places[rank]
        if word in ("send", "recv") and ("forward" in op or "backward" in op):
            onward = ("forward" in op) == (word == "send")
            peer = ranks.get(place._replace(stage=place.stage + (1 if onward else -1)))
            if peer is None:
                nowhere.add((op, rank))
            else:
                group[op, rank] = str(sorted((rank, peer)))
        elif word is not None and "layernorm" not in op:
            sharing.setdefault((op, place.data if "embedding" in op else place.stage), []).append((op, rank))
    for members in sharing.values():
        if len(members) > 1:
            group |= dict.fromkeys(members, str(sorted(rank for _, rank in members)))
    return _grouped(rows, group, nowhere)


def _places(rows: pa.Table) -> Mapping[Rank, _Place]:
    """Place of each rank; a column that the table lacks is 0. Raises InputError where it is not clear."""
    used = rows.group_by(["rank", "data", "stage"]).aggregate([])
    found: dict[Rank, _Place] = {}
    taken: dict[_Place, Rank] = {}
    columns = (used["rank"].to_pylist(), used["data"].to_pylist(), used["stage"].to_pylist())
    for rank, data, stage in zip(*columns, strict=True):
        place = _Place(data or 0, stage or 0)
        if found.setdefault(rank, place) != place:
            raise InputError(f"rank {rank} has several values of data or stage", remedy=COLUMNS_PAGE)
        if taken.setdefault(place, rank) != rank:
            same = f"ranks {taken[place]} and {rank} have the same values of data and stage"
            raise InputError(same, remedy=COLUMNS_PAGE)
    return found


def _grouped(
    rows: pa.Table, group: Mapping[tuple[str, Rank], str | None], nowhere: set[tuple[str, Rank]]
) -> tuple[pa.Table, int]:
    ops = rows["op"].combine_chunks().dictionary_encode()
    spelled, rank = ops.dictionary.to_pylist(), rows["rank"].to_numpy()
    pairs, which = np.unique(np.stack([ops.indices.to_numpy(), rank]), axis=1, return_inverse=True)
    keys = [(spelled[op], int(of)) for op, of in pairs.T.tolist()]
    texts = pa.array([group.get(key) for key in keys], pa.string())
    left_out = np.array([key in nowhere for key in keys], bool)[which.ravel()]
    rows = rows.set_column(rows.column_names.index("group"), "group", texts.take(pa.array(which.ravel())))
    return rows.filter(pc.invert(pa.array(left_out))), int(left_out.sum())
