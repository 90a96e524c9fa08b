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
"""Least peak that is reported, in per cent of the limit."""

_ADVICE = {
    "cuda": "A longer sequence or memory fragmentation may end the job with an out-of-memory error. Use activation "
    "checkpointing, smaller batches with gradient accumulation, or sharded optimizer state. If much more memory is "
    "reserved than allocated, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    "rss": "At the limit the kernel kills a process of the job. Use fewer loader workers or a shorter prefetch, "
    "memory-map files instead of reading them completely, and detach losses before storing them.",
}


def near_limit(job: RecordedJob) -> Iterator[Cause]:
    """Ranks whose peak is close to their limit: the memory of their own device, or of the machine that they share."""
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
    ranks, kind = tuple(peak.rank for peak in peaks), peaks[0].of
    memory = (
        f"{'its' if len(ranks) == 1 else 'their'} GPU memory"
        if kind == "cuda"
        else "the host memory available to the job"
    )
    return Cause(
        id="ESP502",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('use', ranks)} {share:.0f} % of {memory}",
        severity="warning",
        ranks=ranks,
        # On hosts the memory of other processes is unknown, and pages that ranks share are counted once for each rank.
        confidence="high" if kind == "cuda" else "medium",
        evidence={
            "peak": by_rank({peak.rank: peak.peak for peak in peaks}, "bytes"),
            "limit": Evidence(peaks[0].limit, "bytes"),
            "reached_in": by_rank({peak.rank: peak.reached for peak in peaks if peak.reached}),
        },
        advice=_ADVICE[kind],
    )


_PAGES = (
    Page(
        "ESP502",
        "Memory near its limit",
        "A rank's memory peak is close to its limit: the memory of its GPU or, for jobs on CPUs, the memory of the "
        "machine or control group that its ranks share. A little more ends the job: CUDA reports out of memory, or "
        "the kernel kills a process.",
        "`peak` by rank against `limit`; reported from 92 % on. `reached in` is the phase and step of the peak. "
        "CUDA: bytes allocated by PyTorch's allocator, whose peak is exact; the CUDA context and libraries use more "
        "memory in addition. CPU: the resident set size, sampled up to four times a second, without loader workers.",
        "None: memory costs no time until the job runs out of it.",
        "Use activation checkpointing, smaller batches with gradient accumulation, sharded optimizer state, a shorter "
        "prefetch and fewer loader workers; or raise the limit.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=near_limit)
