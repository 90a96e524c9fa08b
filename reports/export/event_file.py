"""Series over the steps as an event file of TensorBoard, by the package `tensorboard`."""

from typing import BinaryIO

from esprof.analyzers.tracks.step_series import StepSeries
from esprof.core.errors import MissingDependencyError
from esprof.core.types import NS_PER_S

EVENT_FILE = "events.out.tfevents.0000000000.esprof"
"""TensorBoard reads the files of a folder in order of their names, with the time of day for a number: this one comes first,
so that it misses nothing of a training that goes on writing its own."""

_VERDICT = "esprof/verdict"
_FILE_VERSION = "brain.Event:2"


def require_tensorboard() -> None:
    """Raise MissingDependencyError if the package is not installed."""
    try:
        import tensorboard.summary  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"event files need {error.name}, which is not installed", remedy="pip install 'esprof[tensorboard]'"
        ) from error


def write_event_file(series: StepSeries, file: BinaryIO) -> None:
    """Write the figures of each step as scalars at the time of its end, and the verdict as a text at the last step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    records = RecordWriter(file)
    event = Event(wall_time=series.start_ns / NS_PER_S, file_version=_FILE_VERSION)
    records.write(event.SerializeToString())
    for step in series.by_step():
        event = Event(wall_time=step.end_ns / NS_PER_S, step=step.step)
        for name, value in step.figures.items():
            event.summary.MergeFrom(scalar_pb(name, value))
        records.write(event.SerializeToString())
    if series.verdict:
        event = Event(wall_time=event.wall_time, step=event.step, summary=text_pb(_VERDICT, series.verdict))
        records.write(event.SerializeToString())
