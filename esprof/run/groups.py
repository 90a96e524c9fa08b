"""Process groups. PyTorch's names differ between ranks, so a group is named by its global ranks."""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from esprof.core.readable import stretches
from esprof.core.types import Rank

MAX_RANKS = 1 << 20
"""Largest world size: a greater number in a file is corrupt, and a range over it would exhaust memory."""

RankField = Annotated[Rank, msgspec.Meta(ge=0, lt=MAX_RANKS)]
"""A valid rank in a file."""

_LIST = re.compile(r"\s*[\[(]?\s*\d{1,7}(\s*,\s*\d{1,7})*\s*[\])]?\s*", re.ASCII)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group, named by its sorted global ranks."""

    name: str
    ranks: tuple[RankField, ...]
    backend: str | None = None
    description: str | None = None


def group_name(ranks: Iterable[Rank]) -> str:
    """Return the name of a group: its sorted ranks with ranges, such as `0-3` or `0,2,4`."""
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in stretches(ranks))


def parse_ranks(listed: list[int] | str | None) -> tuple[Rank, ...] | None:
    """Parse a list of ranks such as `[0, 1]`; None if it is missing, was truncated with `...`, or is invalid."""
    if isinstance(listed, str):
        listed = [int(number) for number in re.findall(r"\d+", listed)] if _LIST.fullmatch(listed) else None
    return tuple(sorted(set(listed))) if listed and all(0 <= rank < MAX_RANKS for rank in listed) else None


def named_groups(
    configs: Iterable[tuple[str, list[int] | str | None, str | None, str | None]],
) -> dict[str, Group]:
    """Local name -> Group, from (local name, ranks, backend, description) of each process group."""
    groups = {}
    for local, listed, backend, description in configs:
        ranks = parse_ranks(listed)
        if ranks:
            groups[local] = Group(name=group_name(ranks), ranks=ranks, backend=backend, description=description)
    return groups


def joined_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Return the distinct groups of several ranks."""
    return tuple({group.name: group for group in groups}.values())
