"""What-if terms and their kinds: a file in `terms/` for each kind."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from esprof.core.errors import UsageError
from esprof.core.types import Rank
from esprof.replay.whatif.loading.batches import RecordedBatches
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.scenario import Bound, Scenario, known_ranks, ranks_with
from esprof.run.groups import group_name
from esprof.run.run import Run

_MIN_NUMBER, _MAX_NUMBER = 1e-3, 1e6


class TermPhase(IntEnum):
    """When a term is applied among those of its scenario, in whatever order they are written."""

    RESIZE = 0
    """Changes the samples of a pass. What grows with them is found by recorded times, so before all other terms."""
    REBUILD = 1
    """Replaces nodes and edges. They are found by recorded times, so before other terms change those."""
    MEND = 2
    """Makes slow ranks as fast as their peers. Slow ranks are found by recorded times, so before other terms change
    those."""
    SPEED = 3
    """Applies all speed-ups at once, since their factors multiply."""
    REMOVE = 4
    """Lets some work take no time."""
    BOUND = 5
    """Hides the communication that all other terms leave, and so is applied after them."""
    LOAD = 6
    """Replays the DataLoaders for the steps that all other terms leave."""


class Resource(Enum):
    """What a speed-up makes faster."""

    WORK = "work"
    """All of the time of the term's nodes."""
    CPU = "cpu"
    """All of the time of the term's nodes, and the CPU share of communication between CPUs."""
    LINK = "link"
    """The link's share of communication: all but the CPU share between CPUs, and all but the latency otherwise."""


@dataclass(frozen=True)
class Speed:
    """The effect of a speed-up: divides the durations of some nodes."""

    resource: Resource
    nodes: Callable[[Scenario, "Term"], np.ndarray]
    """How much of the time of each node becomes faster, from 0 to 1, or a mask. Raises Declined where nothing does."""
    factor: Callable[[Scenario, "Term"], np.ndarray] | None = None
    """How many times as fast each node becomes, float64[N]; None: as many times as the term's value says."""


@dataclass(frozen=True)
class Edit:
    """The effect of a term that is no speed-up: changes the graph in any way."""

    phase: TermPhase
    apply: Callable[[Scenario, "tuple[Term, ...]"], Scenario]
    """The scenario changed by all its terms of this kind. Raises Declined where the run lacks the evidence."""
    bound: Callable[[Scenario, Scenario, "tuple[Term, ...]"], Bound] | None = None
    """What bounds the steps in addition to the graph, of the scenarios before and after `apply`; None where nothing does."""


@dataclass(frozen=True)
class Loading:
    """The effect of a term that changes how DataLoaders make their batches."""

    change: Callable[[RecordedBatches, "Term"], RecordedBatches]
    """The batches of a rank as the term changes them. Raises Declined where the run lacks the evidence."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of term: how it is written, what it does, and what it needs."""

    name: str
    examples: tuple[str, ...]
    """Ways to write the term, each a whole term."""
    meaning: str
    """What the term means, in one or two sentences for the documentation."""
    needs: str
    """The evidence without which the term is declined, for the documentation."""
    assumes: str = ""
    """What the prediction takes for granted, for the documentation."""
    effect: Speed | Edit | Loading
    value: Callable[[str], Any]
    """Reads what stands behind the equal sign. Raises UsageError with the reason."""
    argument: Callable[[str], object] | None = None
    """Reads what stands in brackets behind the name; None where nothing may. Raises UsageError with the reason."""
    argument_is_optional: bool = False
    memory: Callable[[Run, RankBlocks, "Term"], RankBlocks] | None = None
    """The memory of a rank of the run as the term changes it; None if it does not change it. Raises Declined
    where the run lacks the evidence."""
    scoped: bool = False
    """Whether `rank3.` , `rank0-3+6.` or `device[NAME].` may stand before the name."""

    @property
    def phase(self) -> TermPhase:
        match self.effect:
            case Edit(phase):
                return phase
            case Speed():
                return TermPhase.SPEED
            case Loading():
                return TermPhase.LOAD


@dataclass(frozen=True)
class Term:
    """One term of a scenario, as it was read. Two that mean the same are equal."""

    text: str = field(compare=False)
    """The term as it was written."""
    kind: Kind
    value: Any
    """What stands behind the equal sign: 2.0 for a speed-up of 2x, 1.0 for a word such as `fix`, of a plan what it
    assigns."""
    argument: object = None
    """What `Kind.argument` read in brackets behind the name; None where nothing stands there."""
    only: tuple[Rank, ...] = ()
    """Ranks to which the term is limited, ascending; empty where it names none."""
    device: str | None = None
    """Part of the name of the devices to which the term is limited; None where it is not limited so."""

    @property
    def target(self) -> str:
        """What the term changes, in one spelling: scope, name and argument."""
        where = f"{scope(self.only)}." if self.only else f"device[{self.device}]." if self.device else ""
        argument = self.argument.pattern if isinstance(self.argument, re.Pattern) else self.argument
        return f"{where}{self.kind.name}[{argument}]"

    @property
    def canonical(self) -> str:
        """The term in one spelling: terms of one meaning have the same, however they were written."""
        return f"{self.target}={self.value!r}"

    def ranks(self, scenario: Scenario) -> list[Rank]:
        """The ranks to which the term applies. Raises Declined where the run has none of them."""
        if self.only:
            return known_ranks(scenario.run, self.only)
        if self.device is not None:
            return ranks_with(scenario.run, self.device)
        return scenario.run.ranks


def scope(ranks: Iterable[Rank]) -> str:
    """The scope of a term that is limited to these ranks, as `Term.only`: `rank0-3+6`."""
    return f"rank{group_name(ranks).replace(',', '+')}"


# How values and arguments are read


def speed_up(value: str) -> float:
    """Read `2x` or `2`: how many times as fast. Raises UsageError."""
    return _number(value[:-1] if value.lower().endswith("x") else value, value)


def mebibytes(value: str) -> float:
    """Read a size in MiB, from `_MIN_NUMBER` to `_MAX_NUMBER`. Raises UsageError for all else."""
    return _number(value, value, remedy="It is a size in MiB, such as 50.")


def share(value: str) -> float:
    """Read a share from 0 to 1. Raises UsageError for all else."""
    try:
        read = float(value)
    except ValueError:
        read = -1.0
    if not 0 <= read <= 1:
        raise UsageError(f"{value!r} is not a share from 0 to 1")
    return read


def _number(value: str, written: str, remedy: str = "A speed-up is written 2x, or 0.5x for half as fast.") -> float:
    try:
        read = float(value)
    except ValueError:
        read = 0.0
    if not _MIN_NUMBER <= read <= _MAX_NUMBER:
        raise UsageError(f"{written!r} is not a number from {_MIN_NUMBER:g} to {_MAX_NUMBER:,.0f}", remedy=remedy)
    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`; it raises UsageError for all else."""

    def read(value: str) -> int:
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise UsageError(f"{value!r} is not a whole number from {least} to {most}")
        return int(value)

    return read


def word(only: str) -> Callable[[str], float]:
    """A reader of values that can only be this word; it raises UsageError for all else."""

    def read(value: str) -> float:
        if value != only:
            raise UsageError(f"its value can only be {only!r}", remedy=f"Write {only!r} after the equals sign.")
        return 1.0

    return read


def zero(value: str) -> float:
    """Read `0`, which stands for work that takes no time. Raises UsageError for all else."""
    if value not in ("0", "0.0"):
        raise UsageError("its value can only be 0 (the work takes no time)", remedy="Write 0 after the equals sign.")
    return 0.0


def text(value: str) -> str:
    """The value itself. Raises UsageError where there is none."""
    if not value:
        raise UsageError("its value is missing", remedy="Write one after the equals sign.")
    return value


def regex(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises UsageError where it is none."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{pattern!r} is not a regular expression ({error})") from error
