"""The Report: everything a renderer shows. It is computed here; a renderer only lays it out."""

from typing import Literal

import msgspec

from esprof.analyzers.finding import Diagnosis
from esprof.replay.answer import ReplayAnswer
from esprof.trace.run import RankMeta
from esprof.types import Bytes, Rank


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of one lane in the timeline; `cls` is a critical-path class (`compute`, `wait`, …)."""

    rank: Rank
    lane: str
    start_us: float
    dur_us: float
    name: str
    cls: str


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A bounded part of the timeline: at most a few thousand bars of one or two steps, short ones merged."""

    steps: tuple[int, ...]
    span_us: float
    bars: tuple[Bar, ...]
    shown: int
    total: int
    """Nodes in these steps, of which `shown` bars were made by merging neighbours and leaving out the shortest."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that one rank held, in all and in each phase of its steps; None where that is not known."""

    rank: Rank
    of: Literal["cuda", "rss"]
    """What is counted: what CUDA's allocator has handed out, or the resident set of the process."""
    peak: Bytes
    limit: Bytes | None
    reached: str | None = None
    """Phase and step of the peak."""
    forward: Bytes | None = None
    backward: Bytes | None = None
    optimizer: Bytes | None = None


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one rank over time, each point the most of a short stretch."""

    rank: Rank
    at_s: tuple[float, ...]
    """Seconds since the first sample of any rank."""
    used: tuple[Bytes, ...]
    reserved: tuple[Bytes, ...]
    """What CUDA's allocator holds of the device; empty where there is no such thing."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled of memory: the peaks of every rank, and the curves of the few ranks that hold most."""

    ranks: tuple[RankMemory, ...]
    curves: tuple[MemoryCurve, ...]
    samples: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = "esprof.report/1"
    title: str
    source: str
    """Where the run was read from."""
    command: tuple[str, ...]
    esprof_version: str
    versions: dict[str, str]
    created_ns: int | None
    ranks: tuple[RankMeta, ...]
    diagnosis: Diagnosis
    replay: ReplayAnswer
    timeline: Excerpt
    memory: MemoryUse | None
    """None where no memory was sampled."""
