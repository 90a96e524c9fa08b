"""What is counted while a graph is built: how much was seen, and how much of it could not be tied together."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class BuildCounts:
    """Numbers of what was seen in one rank, in one part of it, or in the whole run: they add up."""

    collectives: int = 0
    """Calls of collectives. Sends and receives are not among them."""
    collectives_matched: int = 0
    """Calls of collectives that were matched with those of all peers that the run has, or that have no peer."""
    collectives_partial: int = 0
    """Those of `collectives_matched` that have a member of which nothing was recorded, in that step or at all."""
    p2p: int = 0
    """Sends and receives."""
    p2p_matched: int = 0
    """Sends and receives that were matched with those of the peer."""
    collectives_ended_early: int = 0
    """Matched calls that ended before the last peer they waited for had arrived: a sign of clocks out of step."""
    kernels: int = 0
    """Pieces of work on GPU streams: kernels, copies and the like."""
    kernels_without_launch: int = 0
    """Pieces of work on GPU streams whose launch was not recorded, though earlier ones of the same stream have theirs."""
    launches_without_kernel: int = 0
    """Calls that launch a kernel or a CUDA graph, of which no work on the GPU was recorded."""
    waits: int = 0
    """Blocking calls and gaps of CPU threads that are long enough to need a reason."""
    waits_recorded: int = 0
    """Waits of CPU threads whose reason stands in the trace."""
    waits_inferred: int = 0
    """Waits of CPU threads whose reason was found by time alone."""
    waits_rejected: int = 0
    """Waits between GPU streams that got no edge, because what seemed to be waited for ended too late."""
    edges_dropped: int = 0
    """Edges that were dropped to break a cycle, guesses among them."""
    guesses_dropped: int = 0
    """Edges that were dropped to break a cycle, and were of the kinds in `dfg.GUESSES`."""
    lags_clamped: int = 0
    """Edges whose lag was cut to the longest that a graph can hold, about two seconds."""

    def __add__(self, other: "BuildCounts") -> "BuildCounts":
        return BuildCounts(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )
