"""Why a rank did what it noted: written by the job's processes, read by whoever reads the recording."""

from enum import StrEnum


class LossReason(StrEnum):
    """Why a window was not kept, in the words that are said of it."""

    JOBS_PROFILER = "the job's own profiler was on"
    OTHER_THREAD = "the training went on in another thread"
    MEMORY_LIMIT = "the rest would exceed the memory limit"
    DISK_LIMIT = "the traces exceeded the disk limit"
    CUT = "the process ended before it was closed"
