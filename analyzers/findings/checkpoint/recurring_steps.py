"""ESP601, ESP806 and ESP807: steps that take long now and again, such as those that save; ESP403, too, if it is that."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import Confidence
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.analyzers.samples.garbage import COLLECT_LESS
from esprof.analyzers.steps.slow_places import COMPUTING, LOADER, NO_CPU, Excess, computing_of, line_of, stage_of
from esprof.analyzers.steps.step_groups import AT_EPOCHS, AT_RANDOM, MIN_EPOCHS, SlowGroup
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Run

MIN_ROW_SHARE_OF_STEPS = 0.25
"""Share of all steps from which on a row of slow ones is named though nothing tells why."""


def recurring_steps(job: RecordedJob) -> Iterator[Cause]:
    """The job's slow steps, group by group, where they cost enough."""
    for group in job.slow_groups:
        if not group.measured.is_worth_naming:
            continue
        stage, line = stage_of(job.steps, group), line_of(job.samples, group)
        if group.when == AT_EPOCHS and group.is_slow.sum() < MIN_EPOCHS and not (stage and stage.what == LOADER):
            continue  # That one epoch began slowly may have any reason.
        if stage or line or _is_rule(group):
            yield _cause(job.run, group, stage or (None if line else computing_of(job.steps, group)), line)


def _is_rule(group: SlowGroup) -> bool:
    """Whether a group is worth naming though nothing tells why it is slow: at random, or for a moment, any machine is."""
    return group.when != AT_RANDOM and (group.row is None or bool(group.is_slow.mean() >= MIN_ROW_SHARE_OF_STEPS))


def _cause(run: Run, group: SlowGroup, stage: Excess | None, line: Excess | None) -> Cause:
    known = stage or line
    is_save = any(one.is_save for one in (stage, line) if one)
    ranks = tuple(known.lost_ns) if known else tuple(run.ranks)
    usual, slow = (float(group.took_ns[mask].mean()) for mask in (group.is_usual, group.is_slow))
    title = f"{_which(group)} {readable.duration(slow)} instead of {readable.duration(usual)}"
    if known:
        title += (
            f": {readable.ranks(ranks)} {readable.verb('spend', ranks)} it in {printable(known.what, LONGEST_NAME)}"
        )
    return Cause(
        id=_id(group, known, is_save=is_save),
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
        | ({"place": Evidence(printable(line.what, LONGEST_NAME))} if line else {})
        | ({"innermost": Evidence(printable(line.innermost, LONGEST_NAME))} if line and line.innermost else {})
        | ({"lost_there": by_rank({rank: round(ns) for rank, ns in known.lost_ns.items()}, "ns")} if known else {}),
        advice=_SAVE_ADVICE if is_save else _ADVICE_FOR.get(known.what if known else "", _ADVICE),
        measured=group.measured,
    )


def _confidence(group: SlowGroup, known: Excess | None) -> Confidence:
    """Other work on the machine, too, makes steps wait for a CPU or compute for longer; one step may be slow by chance."""
    is_told = known is not None and known.what not in (NO_CPU, COMPUTING)
    return "high" if is_told and group.is_slow.sum() >= MIN_EPOCHS else "medium"


def _id(group: SlowGroup, known: Excess | None, *, is_save: bool) -> str:
    if is_save:
        return "ESP601"
    if known is not None and known.what == GARBAGE_COLLECTION:
        return "ESP403"
    return "ESP806" if group.every else "ESP807"


def _which(group: SlowGroup) -> str:
    if group.every:
        return f"One step in {group.every} takes"
    if group.row is not None:
        return f"Steps {group.row[0]} to {group.row[1]} take"
    if group.when == AT_RANDOM:
        return f"{int(group.is_slow.sum())} of {len(group.steps)} steps take"
    return "The first step of an epoch takes"


_SAVE_ADVICE = (
    "Save less often (what a failure costs in lost steps bounds how seldom), or beside the training: "
    "torch.distributed.checkpoint.async_save copies the state and writes it while training goes on. On several ranks let "
    "each write its share."
)
_ADVICE = (
    "Look at what the job does in these steps only: validation, logging, metrics, saving, a scheduler, garbage collection, "
    "starting loader workers (persistent_workers=True keeps them), compiling for new shapes. Do it less often, on all ranks "
    "in the same step, or beside the training. esprof.stage marks a suspect."
)
_ADVICE_FOR = {
    NO_CPU: "See what else runs on the host, now and then or all the time: other jobs, loader workers, more threads than "
    "CPUs.",
    LOADER: "See what the dataset does then: reading the next file, starting workers (persistent_workers=True keeps them), "
    "slow samples. More workers, or a greater prefetch_factor, may carry the training over it.",
    GARBAGE_COLLECTION: COLLECT_LESS,
    COMPUTING: "Look at whether these steps have more to compute (longer sequences, larger batches, work that is done now "
    "and then), or whether their CPUs were slower just then (other work on the same cores, throttling).",
}
"""What slow steps wait for -> what to do about it."""
_EVIDENCE = (
    "The times of all steps of the run that ran without the profiler: `slow_steps` of `steps` take more than 1.3 times the "
    "median, and `when` they come: every so many steps (at least four of sixteen or more, nearly all that are due, and "
    "nearly no others), in a row, where an epoch begins, or now and then; steps that are twice as much too long as others "
    "are looked at without those. What they have that usual steps lack is looked for in the "
    "stages that the job or the recorder marked, in the waits for the data loader and for a CPU (`lost_there`), and on the "
    "stacks of the training thread, which are sampled fifty times a second: `place` is the outermost line at which slow "
    "steps spend most of their excess, and usual ones hardly any time, with what it called; `innermost` is the last line "
    "of the job's own that this led to. Saves are known by torch.save, torch.distributed.checkpoint and "
    "safetensors.torch, also where the job imported them by name, and else by a function's name."
)
_PRICE = (
    "Measured, not replayed: what these steps take beyond the usual ones, as a share of all. The throughput that is told is "
    "that of all steps."
)

_PAGES = (
    Page(
        "ESP601",
        "Saves stop the training",
        "In some steps the training stops while a checkpoint is written: by torch.save, by torch.distributed.checkpoint, by "
        "safetensors, or by a function of the job's own that is named for saving.",
        _EVIDENCE,
        _PRICE,
        "Save less often, or asynchronously, or in shares; look at the storage where a save takes longer than its bytes "
        "need.",
    ),
    Page(
        "ESP806",
        "Steps that are slow again and again",
        "Every so many steps one takes longer, which neither the median step nor a short window shows.",
        _EVIDENCE,
        _PRICE,
        "Find what happens then: validation, logging, metrics, a scheduler; do it less often or beside the training.",
    ),
    Page(
        "ESP807",
        "Steps that are slow at epochs, in a row, or now and then",
        "Some steps take longer, at no regular distance, or a row of them does. Those at random, and short rows, are named "
        "only where it can be told what they have that others lack: any machine has slow moments.",
        _EVIDENCE,
        _PRICE,
        "At epochs: persistent_workers=True, a validation that is shorter or beside the training. At random: what is named.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=recurring_steps)
