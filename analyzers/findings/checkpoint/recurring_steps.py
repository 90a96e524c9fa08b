"""ESP601, ESP806 and ESP807: slow steps that recur, such as checkpoints. ESP403 if garbage collection is the cause."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import Confidence
from esprof.analyzers.findings.data.epoch_starts import starts_workers
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.analyzers.samples.garbage import COLLECT_LESS
from esprof.analyzers.steps.excess import COMPUTING, LOADER, NO_CPU, Excess, computing_of, line_of, stage_of
from esprof.analyzers.steps.saves import MAX_OVERHEAD_PCT, Saves
from esprof.analyzers.steps.step_groups import AT_EPOCHS, AT_RANDOM, MIN_EPOCHS, SlowGroup
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.run.raw.stages import GARBAGE_COLLECTION

MIN_ROW_SHARE_OF_STEPS = 0.25
"""Least share of all steps for which a series of consecutive slow steps is reported without a known cause."""


def recurring_steps(job: RecordedJob) -> Iterator[Cause]:
    """Groups of slow steps that cost enough to be reported."""
    for group in job.slow_groups:
        if not group.measured.is_worth_reporting:
            continue
        stage, line = stage_of(job.steps, group), line_of(job.samples, group)
        if group.when == AT_EPOCHS and group.is_slow.sum() < MIN_EPOCHS and not (stage and stage.what == LOADER):
            continue  # A single slow start of an epoch may have any cause.
        if starts_workers(job, group):
            continue  # ESP111 names it.
        if stage or line or _has_pattern(group):
            computing = None if stage or line else computing_of(job.steps, group)
            yield _cause(job, group, stage or computing, line)


def _has_pattern(group: SlowGroup) -> bool:
    """Whether a group is reported even without a known cause: random or short slowdowns occur on any machine."""
    return group.when != AT_RANDOM and (group.row is None or bool(group.is_slow.mean() >= MIN_ROW_SHARE_OF_STEPS))


def _cause(job: RecordedJob, group: SlowGroup, stage: Excess | None, line: Excess | None) -> Cause:
    known, run, where = stage or line, job.run, line.what if line else ""
    is_collection = known is not None and known.what == GARBAGE_COLLECTION
    if is_collection and line is None and job.collections is not None:
        where = job.collections.location
    is_save = any(one.is_save for one in (stage, line) if one)
    ranks = tuple(known.lost_ns) if known else tuple(run.ranks)
    usual, slow = (float(group.took_ns[mask].mean()) for mask in (group.is_usual, group.is_slow))
    title = f"{_subject(group)} {readable.duration(slow)} instead of {readable.duration(usual)}"
    if known:
        doing = "" if known.what in (LOADER, NO_CPU, COMPUTING) else "in "
        title += (
            f": {readable.ranks(ranks)} {readable.verb('spend', ranks)} the extra time {doing}"
            f"{printable(known.what, LONGEST_NAME)}" + (" and lines around it" if known.around else "")
        ) + (f", at {printable(where, LONGEST_NAME)}" if is_collection and where else "")
    return Cause(
        id=_id(group, is_save=is_save, is_collection=is_collection),
        title=title,
        ranks=ranks,
        confidence=_confidence(group, known),
        evidence={
            "when": Evidence(group.when),
            "slow_steps": Evidence(int(group.is_slow.sum())),
            "steps": Evidence(len(group.steps)),
            "slow_step": Evidence(round(slow), "ns"),
            "other_step": Evidence(round(usual), "ns"),
        }
        | ({"extra_time_in": Evidence(printable(stage.what, LONGEST_NAME))} if stage else {})
        | ({"source_line": Evidence(printable(where, LONGEST_NAME))} if where else {})
        | (
            {"lines_around": Evidence("; ".join(printable(one, LONGEST_NAME) for one in line.around))}
            if line and line.around
            else {}
        )
        | ({"innermost": Evidence(printable(line.innermost, LONGEST_NAME))} if line and line.innermost else {})
        | ({"lost_there": by_rank({rank: round(ns) for rank, ns in known.lost_ns.items()}, "ns")} if known else {}),
        advice=_SAVE_ADVICE + _enough(job.saves) if is_save else _ADVICE_FOR.get(known.what if known else "", _ADVICE),
        measured=group.measured_events if is_collection else group.measured,
    )


def _enough(saves: Saves | None) -> str:
    """The interval at which saves would cost little, if it is known."""
    if saves is None or not saves.is_enough or saves.is_always_written:
        return ""
    every = saves.mean_cost.shortest_within(MAX_OVERHEAD_PCT / 100)
    return f" A save every {every} steps would cost {MAX_OVERHEAD_PCT} % (`esprof recommend --only checkpoint`)."


def _confidence(group: SlowGroup, known: Excess | None) -> Confidence:
    """High only for causes within the job, and only for several steps: one step may be slow by chance."""
    # Other load on the machine also makes steps wait for a CPU or compute longer.
    is_own_cause = known is not None and known.what not in (NO_CPU, COMPUTING)
    return "high" if is_own_cause and group.is_slow.sum() >= MIN_EPOCHS else "medium"


def _id(group: SlowGroup, *, is_save: bool, is_collection: bool) -> str:
    if is_save:
        return "ESP601"
    if is_collection:
        return "ESP403"
    return "ESP806" if group.every else "ESP807"


def _subject(group: SlowGroup) -> str:
    """Start of the title: subject and verb."""
    if group.every:
        return f"One step in {group.every} takes"
    if group.row is not None:
        return f"Steps {group.row[0]} to {group.row[1]} take"
    if group.when == AT_RANDOM:
        return f"{int(group.is_slow.sum())} of {len(group.steps)} steps take"
    return "The first step of an epoch takes"


_SAVE_ADVICE = (
    "Save less often (as often as the work lost in a failure requires), or save asynchronously: "
    "torch.distributed.checkpoint.async_save copies the state and writes it while training continues. On several "
    "ranks let each rank write its own shard."
)
_ADVICE = (
    "Find out what the job does only in these steps: validation, logging, metrics, saving, a scheduler, garbage "
    "collection, starting loader workers (persistent_workers=True avoids that), compiling for new shapes. Do it "
    "less often, on all ranks in the same step, or in the background. Mark suspected code with esprof.stage."
)
_ADVICE_FOR = {
    NO_CPU: "Look for other load on the host, temporary or permanent: other jobs, loader workers, more threads than CPUs.",
    LOADER: "Find out what the dataset does then: reading the next file, starting workers (persistent_workers=True avoids "
    "that), slow samples. More workers or a greater prefetch_factor may bridge the delay.",
    GARBAGE_COLLECTION: COLLECT_LESS,
    COMPUTING: "Check whether these steps have more to compute (longer sequences, larger batches, occasional work), or "
    "whether their CPUs were slower then (other load on the same cores, throttling).",
}
"""Cause of slow steps -> advice."""
_EVIDENCE = (
    "Based on all steps without profiler: `slow steps` of `steps` took more than 1.3 times the median. `when` is their "
    "pattern: every N steps (at least four slow steps of sixteen, nearly all that are due, and hardly any others), "
    "consecutive, at the start of an epoch, or at random. Steps with at least twice the excess of others form a "
    "group of their own. The extra time is searched for in stages that the job or the recorder marked, in waits for "
    "the data loader and for a CPU (`lost there`), and in the stacks of the training thread, sampled fifty times a "
    "second. `source line` is the outermost line where slow steps spend most of their extra time and usual steps "
    "hardly any, with its callee; `innermost` is the innermost line of the job's own code below it. If only several lines "
    "of a function take most of that time together, `source line` is the longest of them, and `lines around` lists others. "
    "Saves are "
    "recognised by torch.save, torch.distributed.checkpoint (with functions that gather the state of sharded models) and "
    "safetensors.torch, also if imported by name, or by the function's name."
)
_PRICE = (
    "Measured, not replayed: the extra time of these steps over the usual ones, as a share of all steps. The reported "
    "throughput covers all steps."
)
_AS_ESP601 = "As in ESP601."

_PAGES = (
    Page(
        "ESP601",
        "Checkpoints stop the training",
        "In some steps the training stops while a checkpoint is written: by torch.save, torch.distributed.checkpoint, "
        "safetensors, or a function of the job whose name indicates saving.",
        _EVIDENCE,
        _PRICE,
        "Save less often, asynchronously, or in shards. If a save takes longer than its size explains, check the "
        "storage.",
    ),
    Page(
        "ESP806",
        "Steps that are slow at regular intervals",
        "Every N steps one step takes longer. Neither the median step nor a short window shows this.",
        _AS_ESP601,
        _AS_ESP601,
        "Find out what happens then: validation, logging, metrics, a scheduler. Do it less often or in the background.",
    ),
    Page(
        "ESP807",
        "Steps that are slow at epochs, consecutively, or at random",
        "Some steps take longer: at the start of epochs, at irregular intervals, or several in succession. Random "
        "slow steps and short series are reported only with a known cause, because any machine has short slowdowns.",
        _AS_ESP601,
        _AS_ESP601,
        "At epochs: use persistent_workers=True, or a shorter or asynchronous validation. Otherwise: fix the "
        "reported cause.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=recurring_steps)
