"""The Report: everything a renderer shows. It is computed here; a renderer only lays it out."""

import msgspec

from esprof.analyzers.advisors.recommend import Recommendations
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.ops.answer import OpsAnswer
from esprof.analyzers.samples.flame import Flame
from esprof.analyzers.steps.step_times import StepTimes
from esprof.analyzers.summary.arrival_map import ArrivalMap
from esprof.analyzers.summary.explorer import Explorer
from esprof.analyzers.summary.job_proof import JobProof
from esprof.analyzers.summary.loader_workers import InputStages
from esprof.analyzers.summary.timeline_excerpt import Excerpt
from esprof.analyzers.views.memory_use import MemoryUse
from esprof.analyzers.views.probed import Probed
from esprof.analyzers.views.unrecorded import Unrecorded
from esprof.core.types import Rank
from esprof.replay.answer import ReplayAnswer
from esprof.run.logs import JobEvent, Round
from esprof.run.run import RankMeta


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
    charted_ranks: tuple[Rank, ...]
    """Ranks with a bar of their own in the breakdown (`drawn_ranks`)."""
    explorer: Explorer | None
    """None if the run answers no what-if."""
    steps: StepTimes | None
    """None if no step ran without the profiler."""
    timeline: Excerpt
    arrivals: ArrivalMap | None
    """None if no collective of several ranks was recorded."""
    operations: OpsAnswer
    input: InputStages | None
    """None if no making of a batch was recorded."""
    flame: Flame | None
    """None if no stack was sampled."""
    memory: MemoryUse | None
    """None if no memory was sampled."""
    probed: Probed | None
    """None if the job was not probed."""
    advice: Recommendations | None
    """What `esprof recommend` advises without options; None if the run gives no advice."""
    not_recorded: tuple[Unrecorded, ...]
    history: tuple[JobEvent, ...]
    """Events of an elastic job, the oldest first; at most the last `MAX_EVENTS`."""
    proof: JobProof | None
    """Up to which step the bits of an elastic job are proven; None if nothing is known."""
    rounds: tuple[Round, ...]
    """Rounds of `esprof tune`, the oldest first; at most the last `MAX_EVENTS`."""
