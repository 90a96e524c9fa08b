"""Reasons for snapshots and for lost windows, which the job's processes record."""

from enum import StrEnum


class SnapshotReason(StrEnum):
    """Why the flight recorder of a rank took a snapshot."""

    HANG = "hang"
    """A step is so long that it may never end, or a rank hangs before the end of its first step."""
    SLOW = "slow"
    """A step has lasted much longer than those before it."""
    ASKED = "asked"
    """The launcher requested snapshots of all ranks."""
    STARTING = "starting"
    """A rank computes at the same source location for long before the end of its first step."""
    ERROR = "error"
    """An exception ends the process."""


class LossReason(StrEnum):
    """Why a window was lost, as warnings show it."""

    JOBS_PROFILER = "the job's own profiler was on"
    OTHER_THREAD = "the training went on in another thread"
    MEMORY_LIMIT = "the rest would exceed the memory limit"
    DISK_LIMIT = "the traces exceeded the disk limit"
    RECORDER_STOPPED = "the recorder stopped before it was closed"
    CUT = "the process ended before it was closed"
