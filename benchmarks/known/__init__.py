"""Jobs whose truth is known: ranks simulated to the nanosecond, recorded as torch records them, and run again with what a
what-if changes.

`program` is what ranks do, `machine` runs it, `timeline` is what came of it, `kineto` writes that down, `changes` gives the
durations under a what-if, `build`, `comms` and `shapes` write programs, `jobs` makes one of a seed, `asked` asks esprof,
`judge` and `tables` compare. Nothing but `asked` knows esprof.

Modelled: CPU threads that run code, launch, wait for events, streams, the device, each other and locks; streams that work
in order of issue, one kernel at a time; events that hold back what a stream was given later; queues of launches that make a
CPU wait when full; NCCL kernels that occupy their stream from their turn until all members of the transfer are done; graphs;
gloo's threads; batches made by the rank or by workers ahead of it.

Not modelled: kernels that slow each other down where streams overlap, and so neither a GPU too full for the next kernel;
transfers that share a link; clocks of CPUs and GPUs that change with load; small messages that are sent before anyone
receives them; transfers that end at slightly different times on their members; clocks that drift within a window; the
profiler's own cost; events and waits that take room in a stream's queue; the time from an event to what it lets go on.
"""
