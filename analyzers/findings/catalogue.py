"""The findings' pages: what `esprof explain ID` shows and `docs/findings.md` is made of."""

from dataclasses import dataclass

FAMILIES = {
    1: "input data",
    2: "ranks and stragglers",
    3: "communication",
    4: "host and launch",
    5: "memory and allocator",
    6: "checkpoint",
    7: "kernels and padding",
    8: "hangs and pipelines",
    9: "quality of the evidence",
}
"""First digit of an id -> what its family is about."""


@dataclass(frozen=True)
class Page:
    """One finding explained. `meaning`, `evidence`, `price` and `remedy` are plain paragraphs."""

    id: str
    title: str
    meaning: str
    evidence: str
    price: str
    remedy: str

    @property
    def family(self) -> str:
        return FAMILIES[int(self.id[3])]


_STRAGGLER_PRICE = (
    "Replay gives this rank's work the median duration that the same work takes on the other ranks (gaps included, "
    "input data not) and runs the whole job again. Waiting that others show is not the price: if a backlog hides it, "
    "fixing the rank gains less than the others wait."
)
_STRAGGLER_EVIDENCE = (
    "`late_ms_per_step` is how long the others waited for this rank alone, from the second last arrival at a collective "
    "to its own; a delay that holds up several collectives counts once. "
    "`place` names the operation or gap where it loses most against its peers, with the Python line where a window with "
    "stacks was recorded; `saving_ms_by_cause` prices each kind of work alone."
)

_NO_PRICE = "None: a job that stands still has no step time to gain."

PAGES: dict[str, Page] = {
    page.id: page
    for page in (
        Page(
            "ESP101",
            "Ranks wait for input data",
            "The training loop asked its DataLoader for a batch and had to wait. In a job on several ranks one slow "
            "loader stops all: the others show it as waiting at the next collective, never as input stall.",
            "`input_stall_ms` is the time per step inside the loader's next(), waiting or making the batch; `batch_ms` "
            "what making one batch takes in a worker (recorded by `esprof record`; Kineto traces do not show workers).",
            "Replay makes these ranks' batches take no time and runs the whole job again.",
            "More workers (num_workers), a deeper prefetch, cheaper decoding, faster or closer storage, a cache. Compare "
            "the stalling rank's host and storage with the others' when only some ranks stall.",
        ),
        Page(
            "ESP201",
            "A rank is late because of unrecorded host time",
            "One rank comes last to collectives, and what makes it late is time in which none of its threads ran a "
            "recorded operation: Python code, a sleep, I/O, garbage collection, or a CPU that others took.",
            _STRAGGLER_EVIDENCE,
            _STRAGGLER_PRICE,
            "Go to the place named; if it moves from step to step, look at the host (other processes, CPU limits).",
        ),
        Page(
            "ESP202",
            "A rank is late because its compute is slower",
            "One rank comes last to collectives because the same operations take longer there.",
            _STRAGGLER_EVIDENCE,
            _STRAGGLER_PRICE,
            "Clocks, temperature, other tenants, thread counts; or more work than the others have (longer sequences).",
        ),
        Page(
            "ESP203",
            "A rank is late because its CPU issues work more slowly",
            "One rank comes last to collectives because its CPU takes longer for the same calls and launches.",
            _STRAGGLER_EVIDENCE,
            _STRAGGLER_PRICE,
            "Other processes on its host, CPU limits, NUMA binding, a power-saving governor.",
        ),
        Page(
            "ESP204",
            "A rank is late because of its memory allocator",
            "One rank comes last to collectives because its allocator asks the driver for memory.",
            _STRAGGLER_EVIDENCE,
            _STRAGGLER_PRICE,
            "Lower its peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        ),
        Page(
            "ESP301",
            "Communication that nothing hides",
            "Transfers run while no rank computes, so the step waits for them.",
            "`exposed_ms` is the time per step in which only a transfer runs, by rank; waiting for peers is not in it.",
            "Replay makes all transfers take no time: the bound of what any faster link or compression can give.",
            "Compression, lower precision, gradient accumulation, smaller buckets that start earlier, a faster link.",
        ),
        Page(
            "ESP401",
            "The host limits the step",
            "The GPU finishes its work and waits for the CPU to launch more.",
            "`host_share` is the share of the step in which the CPU works and its GPU has nothing to do.",
            "Replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or I/O.",
            "torch.compile, CUDA graphs, fused optimizers, larger batches, no synchronisation within the step.",
        ),
        Page(
            "ESP501",
            "The allocator stops the step",
            "cudaMalloc and cudaFree stop the device. They come when the caching allocator has no block that fits: at the "
            "start, when shapes change, and near the memory limit.",
            "`allocator_ms_per_step` by rank; `outlier_steps` are those that spend more than a quarter of their time so, "
            "with what replay says they would take without.",
            "Replay drops these calls; the saving is that of a steady step, which the outliers are not.",
            "A lower peak, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes that do not change.",
        ),
        Page(
            "ESP502",
            "Memory near its limit",
            "The most memory that a rank held comes close to what it may have: its share of a GPU, or, for jobs on CPUs, "
            "the machine or control group that its ranks share. A little more and the job ends: CUDA out of memory, or a "
            "process killed by the kernel.",
            "`peak_bytes` by rank against `limit_bytes`, from 92 % on. `reached_in` is the phase and step of the peak. "
            "CUDA: bytes that PyTorch's allocator has handed out, whose peak is exact; the CUDA context and "
            "libraries hold more beside them. CPU: the resident set as sampled, up to four times a second, without loader "
            "workers.",
            "None: it costs no time until it costs the job.",
            "Checkpointed activations, smaller batches with accumulated gradients, sharded optimizer state, a shorter "
            "prefetch and fewer loader workers; a limit that leaves room.",
        ),
        Page(
            "ESP801",
            "A rank did not enter a collective",
            "Ranks wait in a collective that another rank of the group has not entered, and no step has ended since. That "
            "rank is somewhere else, has ended, or gives no sign. A rank that waits in a collective of another group is not "
            "to blame: the one at the end of the chain is.",
            "`collective`, its `number` in the process group `group`, and `bytes`; who entered it, who is missing, how long "
            "the first one had waited when the ranks were looked at, and in `stacks` the line of the job's own code that "
            "each rank was at.",
            _NO_PRICE,
            "Look at the line of the missing rank. Usual causes: code under `if rank == 0`, loops of different length, an "
            "exception that one rank swallows, a read or a lock that does not return. A long save or validation looks the "
            "same while it lasts.",
        ),
        Page(
            "ESP802",
            "Ranks entered different collectives",
            "Under one number of a process group, ranks entered different collectives, or one collective with different "
            "sizes; or ranks entered the collectives of two groups in different orders and wait for each other.",
            "`first_mismatch` is the first number at which ranks differ, with what the odd ones and the others entered; "
            "`left_out` says that the odd ranks go on as the others do one call later.",
            _NO_PRICE,
            "Enter the same collectives in the same order on all ranks: no branch around them may depend on the rank or on "
            "its data.",
        ),
        Page(
            "ESP803",
            "A rank died",
            "The process of a rank ended by a signal, by an exception, or without a word, and the others could not go on. "
            "Ranks that the launcher ended after it are not named.",
            "`causes` by rank; `stacks` where the rank was, if a signal or an exception told; `last_whole_step` of every "
            "rank, as far as it was written.",
            _NO_PRICE,
            "Without a word it is most often the kernel's out-of-memory killer, or a limit of the scheduler.",
        ),
        Page(
            "ESP804",
            "Slow steps caught in the act",
            "Steps took more than twice the 99th percentile of those before, or stood still for seconds, and then went on. "
            "The stacks were taken while they lasted, at most every 30 seconds.",
            "`took_ms_in_steps` against `usual_ms`; `stacks` are where the ranks were then. Where all others waited for one "
            "rank, it is named with the collective that it came late to.",
            "None: it is not the time of a usual step. `lost_ms_in_all` is what these steps took too long.",
            "Save and validate less often, on all ranks at once, or beside the training; else look at the line named.",
        ),
        Page(
            "ESP805",
            "A collective that all ranks entered does not end",
            "Every rank of the group has entered it, all agree on what it is, and it is not over.",
            "As of ESP801.",
            _NO_PRICE,
            "Look at what is between the ranks: network interfaces and firewalls, a device whose queue does not move.",
        ),
        Page(
            "ESP901",
            "Much of the step is unexplained",
            "A large part of the critical path is waiting for which the trace shows no cause, or contention.",
            "`explained_pct` = 100 · (1 − (residual + contention) / span) of the critical path.",
            "None: it lowers the trust in the other findings' prices.",
            "Record with synchronisation events and more steps.",
        ),
        Page(
            "ESP902",
            "Collectives without counterpart",
            "Calls of a collective were found on some ranks only, so arrival and transfer cannot be told apart in them.",
            "`collectives` seen and `matched`, over all ranks.",
            "None: unmatched calls keep their recorded duration in every replay.",
            "Record the same steps on all ranks.",
        ),
        Page(
            "ESP903",
            "Ranks are missing",
            "The job had more ranks than this run holds.",
            "`missing` lists them.",
            "None: what a missing rank does to the others is seen only as their waiting.",
            "Record all ranks, or add their files.",
        ),
    )
}
