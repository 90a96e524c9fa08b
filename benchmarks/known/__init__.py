"""Jobs of known truth: ranks simulated to the nanosecond, recorded as torch records them, and run again with the durations
under a what-if.

`program` describes the work of ranks, `machine` runs it, `timeline` is the result, `kineto` writes it as a trace, `changes`
gives the durations under a what-if, `build`, `comms` and `shapes` write programs, `jobs` makes a job from a seed, `asked`
asks esprof, `judge` and `tables` compare. Only `asked` imports esprof.

Modelled: CPU threads that run code, launch, wait for events, streams, the device, each other and locks; streams that run
kernels in launch order, one at a time; events that hold back later work of a stream; launch queues that block the CPU when
full; NCCL kernels that occupy their stream from their start until all members of the collective are done; CUDA graphs;
gloo's threads; batches made by the rank or by workers ahead of it.

Not modelled: kernels that slow each other down on overlapping streams, and so also a GPU too full for the next kernel;
collectives that share a link; clock rates of CPUs and GPUs that change with load; small messages that are sent before the
receiver arrives; collectives that end at slightly different times on their members; clocks that drift within a window; the
profiler's own cost; events and waits that take slots in a stream's queue; the latency from an event to the work it releases.
"""
