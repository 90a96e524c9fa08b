"""The Report: everything a renderer shows. It is computed here; a renderer only lays it out."""

import msgspec

from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.ops import OpsAnswer
from esprof.analyzers.samples.flame import Flame
from esprof.analyzers.steps.step_times import StepTimes
from esprof.analyzers.views.memory_use import MemoryUse
from esprof.analyzers.views.probed import Probed
from esprof.core.types import Rank
from esprof.replay.answer import ReplayAnswer
from esprof.run.logs import JobEvent, Round
from esprof.run.run import RankMeta


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of one lane in the timeline; `cls` is a critical-path class (`compute`, `wait`, …)."""

    rank: Rank
    lane: str
    start_us: float
    dur_us: float
    name: str
    cls: str


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A bounded excerpt of the timeline: at most a few thousand bars of one or two steps, short ones merged."""

    steps: tuple[int, ...]
    span_us: float
    bars: tuple[Bar, ...]
    shown: int
    total: int
    """Nodes in these steps; merging neighbours and leaving out the shortest gives `shown` bars."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = "esprof.report/1"
    title: str
    source: str
    """Path of the run."""
    command: tuple[str, ...]
    esprof_version: str
    versions: dict[str, str]
    created_ns: int | None
    ranks: tuple[RankMeta, ...]
    diagnosis: Diagnosis
    replay: ReplayAnswer
    steps: StepTimes | None
    """None if no step ran without the profiler."""
    timeline: Excerpt
    operations: OpsAnswer
    flame: Flame | None
    """None if no stack was sampled."""
    memory: MemoryUse | None
    """None if no memory was sampled."""
    probed: Probed | None
    """None if the job was not probed."""
    assignment: EstAdvice | None
    """Advised assignment of ESTs to ranks; None if the run does not record the present one."""
    history: tuple[JobEvent, ...]
    """Events of an elastic job, the oldest first; at most the last `MAX_EVENTS`."""
    rounds: tuple[Round, ...]
    """Rounds of `esprof tune`, the oldest first; at most the last `MAX_EVENTS`."""
