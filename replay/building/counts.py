"""Counts of a graph's construction: recorded events, and how many of them could not be matched or explained."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class BuildCounts:
    """Counts for one rank, one section of its graph, or the whole run; they can be added.

    A wait counts if it is a blocking call or a gap of a CPU thread that is too long to be the thread's own work.
    """

    collectives: int = 0
    """Calls of collectives, without sends and receives."""
    collectives_matched: int = 0
    """Calls of collectives that were matched with the calls of all recorded peers, or that have no peer."""
    collectives_partial: int = 0
    """Calls among `collectives_matched` with a member that recorded nothing, in that step or at all."""
    p2p: int = 0
    """Sends and receives."""
    p2p_matched: int = 0
    """Sends and receives that were matched with the call of the peer."""
    collectives_ended_early: int = 0
    """Matched calls that ended before their last peer arrived: a sign of clocks that are not synchronized."""
    kernels: int = 0
    """Pieces of work on GPU streams: kernels, copies, memsets."""
    kernels_without_launch: int = 0
    """Pieces of work on GPU streams without a recorded launch, after a piece of the same stream that has one."""
    launches_without_kernel: int = 0
    """Calls that launch a kernel or a CUDA graph without recorded work on the GPU."""
    waits: int = 0
    """Waits of CPU threads."""
    waits_recorded: int = 0
    """Waits of CPU threads whose cause is recorded in the trace."""
    waits_inferred: int = 0
    """Waits of CPU threads whose cause was inferred from times alone."""
    waits_rejected: int = 0
    """Waits between GPU streams without an edge, because the work that seemed to be awaited ended too late."""
    edges_dropped: int = 0
    """Edges dropped to break a cycle, including guesses."""
    guesses_dropped: int = 0
    """Edges of the kinds in `dfg.GUESSES` dropped to break a cycle."""
    lags_clamped: int = 0
    """Edges whose lag was clamped to the longest that a graph can hold, about two seconds."""

    def __add__(self, other: "BuildCounts") -> "BuildCounts":
        return BuildCounts(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )
