"""ESP502: memory near its limit."""

from collections import defaultdict
from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.analyzers.views.memory_use import RankMemory, rank_memory
from esprof.core import readable
from esprof.core.types import Rank

MIN_PCT_OF_LIMIT = 92.0
"""Per cent of the limit from which on a peak is named."""

_ADVICE = {
    "cuda": "A longer sequence or a fragmented allocator may end the job: recompute activations (checkpointing), take "
    "smaller batches and accumulate their gradients, shard the optimizer's state, or, where much more is reserved than "
    "allocated, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    "rss": "At the limit the kernel kills a process of the job: run fewer loader workers or a shorter prefetch, map data "
    "from files instead of reading it whole, and keep no losses together with their graphs.",
}


def near_limit(job: RecordedJob) -> Iterator[Cause]:
    """Ranks whose peak nearly fills what they may have: a device each, or together the machine that they share."""
    run = job.run
    used = {rank.rank: peak for rank in run.meta.ranks if (peak := rank_memory(run, rank)) is not None}
    sharing: dict[tuple[str, str | Rank | None], list[RankMemory]] = defaultdict(list)
    for rank, peak in used.items():
        sharing[peak.of, rank if peak.of == "cuda" else run.rank(rank).host].append(peak)
    for peaks in sharing.values():
        limit = min((peak.limit for peak in peaks if peak.limit), default=None)
        share = 100 * sum(peak.peak for peak in peaks) / limit if limit else 0.0
        if share >= MIN_PCT_OF_LIMIT:
            yield _cause(peaks, share)


def _cause(peaks: list[RankMemory], share: float) -> Cause:
    ranks, of = tuple(peak.rank for peak in peaks), peaks[0].of
    whose = "its GPU's memory" if of == "cuda" else "the memory that this machine has for the job"
    return Cause(
        id="ESP502",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('come', ranks)} to {share:.0f} % of {whose}",
        severity="warning",
        ranks=ranks,
        # Of a machine, other processes take a share that is not seen here, and pages that ranks share count for each.
        confidence="high" if of == "cuda" else "medium",
        evidence={
            "peak": by_rank({peak.rank: peak.peak for peak in peaks}, "bytes"),
            "limit": Evidence(peaks[0].limit, "bytes"),
            "reached_in": by_rank({peak.rank: peak.reached for peak in peaks if peak.reached}),
        },
        advice=_ADVICE[of],
    )


_PAGES = (
    Page(
        "ESP502",
        "Memory near its limit",
        "The most memory that a rank held comes close to what it may have: its share of a GPU, or, for jobs on CPUs, "
        "the machine or control group that its ranks share. A little more and the job ends: CUDA out of memory, or a "
        "process killed by the kernel.",
        "`peak` by rank against `limit`, from 92 % on. `reached_in` is the phase and step of the peak. "
        "CUDA: bytes that PyTorch's allocator has handed out, whose peak is exact; the CUDA context and "
        "libraries hold more beside them. CPU: the resident set as sampled, up to four times a second, without loader "
        "workers.",
        "None: it costs no time until it costs the job.",
        "Checkpointed activations, smaller batches with accumulated gradients, sharded optimizer state, a shorter "
        "prefetch and fewer loader workers; a limit that leaves room.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=near_limit)
