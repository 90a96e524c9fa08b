"""Tracks of the whole job: its steps as measured and in each timeline, and the critical path of each timeline."""

from collections.abc import Mapping, Sequence

import numpy as np

from esprof.analyzers.tracks.replayed import lane_labels
from esprof.analyzers.tracks.track import ArrowEnds, Slices, Track, TrackProcess
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import Piece, Timeline
from esprof.replay.replayed import Replayed

JOB = "job"
_CLASSES = tuple(cls.label for cls in Cls)


def job_tracks(
    replayed: Replayed, timelines: Mapping[str, Timeline], paths: Mapping[str, Sequence[Piece]], steps: Sequence[int]
) -> TrackProcess:
    """The steps and critical paths of `timelines`, by title."""
    tracks = [_steps_measured(replayed, steps)]
    for title, timeline in timelines.items():
        tracks += [_steps(f"steps {title}", timeline, steps), _path(f"critical path {title}", timeline, paths[title])]
    return TrackProcess(JOB, "", recorded=False, tracks=tracks)


def _steps_measured(replayed: Replayed, steps: Sequence[int]) -> Track:
    """Each step from when the last rank enters it to when the last rank leaves it."""
    found, clocks = replayed.steps, replayed.built.clocks
    bounds = np.array(
        [[clocks.apply(rank, np.array(found.boundaries[rank][step])) for rank in found.run.ranks] for step in steps]
    )
    return _step_track("steps measured", steps, bounds.max(axis=1))


def _steps(name: str, timeline: Timeline, steps: Sequence[int]) -> Track:
    marks = timeline.dfg.marks
    at = [marks.steps.index(step) for step in steps]
    bounds = [timeline.end_ns[nodes[at]].max(axis=1) for nodes in (marks.first, marks.last)]
    return _step_track(name, steps, timeline.dfg.t0_ns + np.stack(bounds, axis=1))


def _step_track(name: str, steps: Sequence[int], bounds_ns: np.ndarray) -> Track:
    """`bounds_ns` has start and end of each step, ns since the epoch, shape (steps, 2)."""
    slices = Slices(
        start_ns=bounds_ns[:, 0],
        end_ns=np.maximum(bounds_ns[:, 1], bounds_ns[:, 0]),
        name=np.arange(len(steps)),
        names=[f"step {step}" for step in steps],
        category=np.zeros(len(steps), np.int64),
        categories=["step"],
        args={"step": list(steps)},
    )
    return Track(name, slices, ArrowEnds.none())


def _path(name: str, timeline: Timeline, path: Sequence[Piece]) -> Track:
    dfg, labels = timeline.dfg, lane_labels(timeline.dfg)
    nodes = np.array([piece.node for piece in path], np.int64)
    lanes = dfg.lane[nodes].tolist()
    slices = Slices(
        start_ns=dfg.t0_ns + np.array([piece.start_ns for piece in path], np.int64),
        end_ns=dfg.t0_ns + np.array([piece.end_ns for piece in path], np.int64),
        name=dfg.name[nodes],
        names=dfg.names,
        category=np.array([piece.cls for piece in path], np.int64),
        categories=_CLASSES,
        args={
            "rank": [piece.rank for piece in path],
            "lane": [labels[lane] if lane >= 0 else None for lane in lanes],
            "step": dfg.step[nodes].tolist(),
        },
    )
    return Track(name, slices, ArrowEnds.none())
