"""Why a rank did what it noted: written by the job's processes, read by whoever reads the recording."""

from enum import StrEnum


class SnapshotReason(StrEnum):
    """Why the flight recorder of a rank took a snapshot."""

    HANG = "hang"
    """A step has lasted so long that it may never end, or a rank stands still before its first step is over."""
    SLOW = "slow"
    """A step has lasted much longer than those before it."""
    ASKED = "asked"
    """The launcher wanted to know where all ranks are."""
    STARTING = "starting"
    """A rank computes at the same place for long before its first step is over."""
    ERROR = "error"
    """An exception ends the process."""


class LossReason(StrEnum):
    """Why a window was not kept, in the words that are said of it."""

    JOBS_PROFILER = "the job's own profiler was on"
    OTHER_THREAD = "the training went on in another thread"
    MEMORY_LIMIT = "the rest would exceed the memory limit"
    DISK_LIMIT = "the traces exceeded the disk limit"
    RECORDER_STOPPED = "the recorder stopped before it was closed"
    CUT = "the process ended before it was closed"
