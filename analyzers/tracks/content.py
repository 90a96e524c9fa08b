"""What is exported: a replayed run with the timelines of scenarios, over all steps of its graph or one of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.analyzers.tracks.job_tracks import job_tracks
from esprof.analyzers.tracks.recorded import RecordedTracks
from esprof.analyzers.tracks.redacted import redacted, redacted_title
from esprof.analyzers.tracks.replayed import ReplayTracks
from esprof.analyzers.tracks.track import TrackProcess
from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Piece, Timeline, critical_path, steady_path
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.scenario import Declined
from esprof.run.groups import Group

REPLAYED = "replayed"
"""Title of the timeline of the graph as recorded; that of a scenario is its text."""


@dataclass(frozen=True)
class Exported:
    """The part of a replayed run that is exported: some steps, with some timelines."""

    replayed: Replayed
    timelines: Mapping[str, Timeline] = field(repr=False)
    """Timelines by title."""
    steps: tuple[int, ...]
    is_redacted: bool = False
    """Whether hashes replace the names of the job."""

    @classmethod
    def of(
        cls, replayed: Replayed, scenarios: Sequence[str] = (), step: int | None = None, *, redact: bool = False
    ) -> "Exported":
        """Raises UsageError for a step that the graph lacks, and InputError for a scenario without evidence."""
        known = replayed.built.dfg.marks.steps
        if step is not None and step not in known:
            raise UsageError(
                f"the graph has no step {step}", remedy=f"It has {readable.numbered('step', known)}; see also --window."
            )
        timelines = {REPLAYED: replayed.timeline}
        for spec in dict.fromkeys(scenarios):
            try:
                timelines[redacted_title(spec) if redact else spec] = replayed.pricer.timeline(spec)
            except Declined as reason:
                raise InputError(f"{spec} has no timeline: {reason}", path=replayed.run.path) from reason
        return cls(replayed, timelines, known if step is None else (step,), redact)

    @property
    def dfg(self) -> Dfg:
        return self.replayed.built.dfg

    @property
    def ranks(self) -> Sequence[Rank]:
        return self.dfg.marks.ranks

    @property
    def start_ns(self) -> Ns:
        """When the first rank enters the first of the steps in the replay, ns since the epoch."""
        first = self.dfg.marks.first[self.dfg.marks.steps.index(self.steps[0])]
        return self.dfg.t0_ns + int(self.replayed.timeline.end_ns[first].min())

    @cached_property
    def paths(self) -> dict[str, list[Piece]]:
        """The critical path of each timeline, by title: over its steady-state steps, or the step if there is one only."""
        if len(self.steps) > 1:
            steady_at = self.replayed.pricer.steady_at
            return {title: steady_path(timeline, steady_at) for title, timeline in self.timelines.items()}
        at = self.dfg.marks.steps.index(self.steps[0])
        return {title: critical_path(timeline, at, at) for title, timeline in self.timelines.items()}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The process groups of the job."""
        groups = self.replayed.run.meta.groups
        if not self.is_redacted:
            return groups
        return tuple(Group(name=hashed("group", group.name), ranks=group.ranks) for group in groups)

    def processes(self) -> Iterator[TrackProcess]:
        """The job's tracks, then those of each rank: recorded, replayed, and of each scenario. One rank is in memory at a
        time."""
        return map(redacted, self._processes()) if self.is_redacted else self._processes()

    def _processes(self) -> Iterator[TrackProcess]:
        yield job_tracks(self.replayed, self.timelines, self.paths, self.steps)
        recorded = RecordedTracks.of(self.replayed, self.steps)
        first_id = recorded.collectives.ids
        replays = []
        for title, timeline in self.timelines.items():
            replays.append(ReplayTracks.of(title, timeline, self.steps, first_id))
            first_id += timeline.dfg.nodes
        for rank in self.ranks:
            process, first_id = recorded.process(rank, first_id)
            yield process
            yield from (replay.process(rank) for replay in replays)
