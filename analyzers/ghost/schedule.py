"""The schedule by which replayed peers meet one real rank: content of `schedule.json` in a reproducer."""

import msgspec

from esprof.core.types import Bytes, Ns, Rank


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What the last of the peers does before a collective."""

    back: int
    """How many collectives back the peers and the rank had met."""
    work_ns: Ns
    """Recorded work of the peers from then on."""


class GhostCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the real rank."""

    kind: str
    """Such as `all_reduce`."""
    group: tuple[Rank, ...]
    bytes: Bytes
    """The larger of the bytes sent and received; -1 if unknown."""
    link: int
    """Number of the link of the rank that it uses; a link carries one collective at a time."""
    transfer_ns: Ns
    """How long it takes on the link, once all ranks have met."""
    waits: bool
    """Whether the real rank waits for its peers."""
    awaited: bool
    """Whether its peers wait for the real rank."""
    after: tuple[Since, ...]
    """The last of the peers launches it at the latest of these moments."""
    last: Rank
    """The peer that was last in the recording."""


class GhostStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step, with the steps without a collective before it. Times are of all ranks."""

    step: int
    recorded_ns: Ns
    replayed_ns: Ns
    collectives: tuple[GhostCall, ...]


class GhostSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The peers of `rank`: a loop over recorded steady-state steps that follow each other."""

    schema: str = "esprof.ghost/1"
    esprof: str
    """Version that wrote it."""
    rank: Rank
    world_size: int
    threads: int | None
    """Intra-op CPU threads of the rank; None if unknown."""
    steps: tuple[GhostStep, ...]
    plain_ns: tuple[Ns, ...]
    """Durations of the steps without profiler next to the window; empty where they are too few."""
