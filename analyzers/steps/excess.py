"""Where slow steps spend more time than usual ones: stages, waits, and lines of the sampled stacks."""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.step_groups import AT_RANDOM, SlowGroup
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.run.raw.stages import SAVES
from esprof.run.stacks import is_own

MIN_SHARE_OF_EXCESS = 0.5
"""Least share of the slow steps' excess time that a stage, wait or line must have to be its cause."""

MAX_SHARE_OF_USUAL_STEP = 0.05
"""Largest share of a usual step that a line may take and still count as specific to slow steps."""

LOADER = "waiting for the data loader"
NO_CPU = "waiting for a CPU"
COMPUTING = "computing on its CPU"

MIN_SHARE_OF_SAVES = 0.25
"""Least share of functions that save in the time of several lines for these to count as a save."""

MIN_SHARE_AROUND = 0.05
"""Least share of the time of several lines for one of them to be named in addition to the longest."""

_DECORATOR = re.compile(r"(^|/)torch/utils/_contextlib\.py\(")
"""Matches the line of `torch.no_grad` and its like that calls the function which they decorate."""

_SAVING = re.compile(
    r"\): (.*\.)?_?([a-z0-9_]*_)?((save|snapshot|checkpoint|ckpt|dump)(_[a-z0-9_]*)?|get_((model|optimizer)_)?state_dict)$",
    re.IGNORECASE,
)
"""Matches the end of a line in a function that saves, or gathers the state to be saved, if it is the job's own or of
`_SAVES_STATE`."""

_LOADING = re.compile(r"(^|/)torch/utils/data/[^ ]*\.py\(")
"""Matches lines of PyTorch's code that loads data."""

_SAVES_STATE = re.compile(r"site-packages/(torch|safetensors|transformers|accelerate|lightning|pytorch_lightning)/")
"""Matches the file of a function of a library that saves the state of a training. Others save pictures and tables."""

MIN_SHARE_OF_RANDOM_STEPS = 0.8
"""Least share of the slow steps at random times in which a line must take most of the excess: in one slow step, any line may
have been slow by chance."""


@dataclass(frozen=True)
class Excess:
    """One activity on which slow steps of some ranks spend more time than usual steps."""

    what: str
    lost_ns: dict[Rank, float]
    """Excess of a slow step over a usual one, ns, for each rank where it is most of the steps' excess time."""
    is_save: bool = False
    is_loader: bool = False
    """Whether most of that time is in PyTorch's code that loads data."""
    innermost: str | None = None
    """The innermost line of the job's own code with most of the time, if `what` does not name it."""
    around: tuple[str, ...] = ()
    """Other lines of the same function that share the time with `what`, if no single one has most of it; longest first."""


def stage_of(job: JobSteps, group: SlowGroup) -> Excess | None:
    """The stage or wait with most of the slow steps' excess time; None if no single one has most of it."""
    most: dict[str, dict[Rank, float]] = defaultdict(dict)
    for rank in job.run.ranks:
        for what, spent_ns in _spent(job, rank, group.steps).items():
            most[what][rank] = group.between(spent_ns)
    # A save may lie in an enclosing stage that the job marked.
    enough = [what for what, by_rank in most.items() if max(by_rank.values()) >= MIN_SHARE_OF_EXCESS * group.excess_ns]
    if not enough:
        return None
    saves = [what for what in enough if what.startswith(SAVES)]
    what = max(saves or enough, key=lambda one: max(most[one].values()))
    # If one rank saves, the others wait for it in another stage.
    lost = {rank: ns for rank, ns in most[what].items() if ns >= MIN_SHARE_OF_EXCESS * group.excess_ns}
    return Excess(what, lost, is_save=bool(saves), is_loader=what == LOADER)


def computing_of(job: JobSteps, group: SlowGroup) -> Excess | None:
    """Longer CPU time in slow steps, on ranks where it is most of their excess time; None if there is no such rank."""
    lost = {}
    for rank in job.run.ranks:
        ran = job.rows(rank, group.steps).ints("cpu_ns")
        if (ran >= 0).all() and (
            beyond := group.between(ran.astype(np.float64))
        ) >= MIN_SHARE_OF_EXCESS * group.excess_ns:
            lost[rank] = beyond
    return Excess(COMPUTING, lost) if lost else None


def _spent(job: JobSteps, rank: Rank, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Time of a rank in each stage, in its loader, and waiting for a CPU, in each of `steps`, ns, float64[steps]."""
    table = job.rows(rank, steps)
    begin = table.ints("start_ns")
    end = begin + table.ints("dur_ns")
    spent = {
        LOADER: np.maximum(table.ints("loader_wait_ns"), 0).astype(np.float64),
        NO_CPU: np.maximum(table.ints("ready_ns"), 0).astype(np.float64),
    }
    stages = job.run.stages(rank)
    marked = stages.where(stages.is_kind("stage") & (stages.ints("worker") < 0))
    start, until = marked.ints("start_ns"), marked.ints("end_ns")
    # A stage lies in the step in which it begins.
    at = np.searchsorted(begin, start, side="right") - 1
    inside = (at >= 0) & (start < end[at])
    names = np.array([name or "" for name in marked.texts("name")], object)
    for name in dict.fromkeys(names[inside].tolist()):
        mine = inside & (names == name)
        spent[name] = np.bincount(at[mine], (until - start)[mine], len(steps))
    return spent


def line_of(samples: JobSamples, group: SlowGroup) -> Excess | None:
    """The line with most of the slow steps' excess time that usual steps hardly run; None if there is none."""
    found = {rank: line for rank in samples.run.ranks if (line := _line_of(samples, rank, group)) is not None}
    if not found:
        return None
    # The other ranks wait for the slow one, at a line where they also wait in usual steps.
    clearest = min(found, key=lambda rank: found[rank].usual_ns / found[rank].slow_ns)
    line = found[clearest]
    lost = {rank: one.slow_ns - one.usual_ns for rank, one in found.items() if one.text == line.text}
    return Excess(line.text, lost, line.is_save, line.is_loader, line.innermost, line.around)


@dataclass(frozen=True)
class _Line:
    text: str
    slow_ns: float
    """Time of a mean slow step at the line, ns."""
    usual_ns: float
    is_save: bool
    is_loader: bool
    innermost: str | None
    """The innermost line of the job's own code below it, beyond the one that it called."""
    around: tuple[str, ...] = ()


def _line_of(samples: JobSamples, rank: Rank, group: SlowGroup) -> _Line | None:
    """The outermost line, in its chain of callers, that takes long in slow steps only, or several of one function."""
    stacks, slow, usual = _sampled(samples, rank, group)
    usual_ns = float(group.took_ns[group.is_usual].mean())
    tree = _Tree()
    for at in np.flatnonzero((slow > 0) | (usual > 0)).tolist():
        tree.add(stacks[at].split("\n"), float(slow[at]), float(usual[at]))

    def is_cause(line: int) -> bool:
        of_slow, of_usual = tree.slow_ns[line], tree.usual_ns[line]
        return (
            of_slow - of_usual >= MIN_SHARE_OF_EXCESS * group.excess_ns
            and of_usual <= MAX_SHARE_OF_USUAL_STEP * usual_ns
        )

    found = [line for line in range(len(tree.text)) if is_cause(line)]
    if not found:
        return _lines_of_function(tree, group)
    outermost = min(found, key=lambda line: tree.depth[line])
    text = tree.text[outermost]
    if group.when == AT_RANDOM and not _is_in_most(samples, rank, group, text):
        return None
    chain = _under(tree, outermost, found)
    if called := next((line for line in chain if not _DECORATOR.search(tree.text[line])), None):
        text = f"{text}, calling {tree.text[called]}"
    own = [tree.text[line] for line in chain[1:] if frame(tree.text[line]).origin == "job"]
    of_slow, of_usual = tree.slow_ns[outermost], tree.usual_ns[outermost]
    is_save, is_loader = (ns[outermost] >= MIN_SHARE_OF_EXCESS * of_slow for ns in (tree.saving_ns, tree.loading_ns))
    return _Line(text, of_slow, of_usual, is_save, is_loader, own[-1] if own else None)


def _lines_of_function(tree: "_Tree", group: SlowGroup) -> _Line | None:
    """Lines that only slow steps run, of one function of the job, which take most of the extra time together; None if there
    are none. The longest one stands for them."""
    blocks: dict[tuple[int, str], list[int]] = defaultdict(list)
    for line, text in enumerate(tree.text):
        if frame(text).origin == "job" and tree.usual_ns[line] <= MAX_SHARE_OF_USUAL_STEP * tree.slow_ns[line]:
            blocks[tree.caller[line], frame(text).function].append(line)

    def slow_ns(lines: list[int]) -> float:
        return sum(tree.slow_ns[line] for line in lines)

    enough = [lines for lines in blocks.values() if slow_ns(lines) >= MIN_SHARE_OF_EXCESS * group.excess_ns]
    if not enough or group.when == AT_RANDOM:
        return None
    block = min(enough, key=lambda lines: tree.depth[lines[0]])
    longest, *others = sorted(block, key=lambda line: tree.slow_ns[line], reverse=True)
    # Lines around a save get ready what is saved, and move the file.
    is_save = sum(tree.saving_ns[line] for line in block) >= MIN_SHARE_OF_SAVES * slow_ns(block)
    usual_ns = sum(tree.usual_ns[line] for line in block)
    long = [line for line in others if tree.slow_ns[line] >= MIN_SHARE_AROUND * slow_ns(block)]
    around = tuple(tree.text[line] for line in long)
    return _Line(tree.text[longest], slow_ns(block), usual_ns, is_save, is_loader=False, innermost=None, around=around)


def _is_in_most(samples: JobSamples, rank: Rank, group: SlowGroup, line: str) -> bool:
    """Whether `line` takes most of the excess time in nearly every slow step of the group."""
    rank_samples = samples.of(rank)
    has_line = rank_samples.matches(lambda stack: line in stack.split("\n"))
    here = has_line & np.isin(rank_samples.step, group.steps)
    step = np.searchsorted(group.steps, rank_samples.step[here])
    took = np.bincount(step, rank_samples.dur_ns[here], len(group.steps))[group.is_slow]
    excess = (group.took_ns - group.took_ns[group.is_usual].mean())[group.is_slow]
    return bool((took >= MIN_SHARE_OF_EXCESS * excess).mean() >= MIN_SHARE_OF_RANDOM_STEPS)


def _is_saving(line: str) -> bool:
    """Whether a function that saves the state of the training is at `line`."""
    return bool(_SAVING.search(line)) and (is_own(line) or bool(_SAVES_STATE.search(line)))


def _under(tree: "_Tree", outermost: int, found: list[int]) -> list[int]:
    """The chain of calls below `outermost` among the lines `found`, at each level the one with the most time."""
    below, chain = outermost, []
    while under := [line for line in found if tree.caller[line] == below]:
        below = max(under, key=lambda line: tree.slow_ns[line])
        chain.append(below)
    return chain


class _Tree:
    """Lines of stacks as a call tree. Times of a line include those of the lines below it."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, str], int] = {}
        self.text: list[str] = []
        self.caller: list[int] = []
        """The line that called each; -1 for the outermost."""
        self.depth: list[int] = []
        self.slow_ns: list[float] = []
        """Time of a mean slow step at each line, ns."""
        self.usual_ns: list[float] = []
        self.saving_ns: list[float] = []
        """The portion of `slow_ns` in which this line or one below it is in a function that saves."""
        self.loading_ns: list[float] = []
        """The same for code that loads data."""

    def add(self, stack: list[str], slow_ns: float, usual_ns: float) -> None:
        path: list[int] = []
        for text in stack:
            path.append(self._of(path[-1] if path else -1, text))
        is_saving = is_loading = False
        for line in reversed(path):
            is_saving = is_saving or _is_saving(self.text[line])
            is_loading = is_loading or bool(_LOADING.search(self.text[line]))
            self.slow_ns[line] += slow_ns
            self.usual_ns[line] += usual_ns
            self.saving_ns[line] += slow_ns if is_saving else 0
            self.loading_ns[line] += slow_ns if is_loading else 0

    def _of(self, caller: int, text: str) -> int:
        number = self._number.setdefault((caller, text), len(self.text))
        if number == len(self.text):
            self.text.append(text)
            self.caller.append(caller)
            self.depth.append(self.depth[caller] + 1 if caller >= 0 else 0)
            for column in (self.slow_ns, self.usual_ns, self.saving_ns, self.loading_ns):
                column.append(0.0)
        return number


def _sampled(samples: JobSamples, rank: Rank, group: SlowGroup) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(stacks; time of a mean slow step at each; the same of a usual step), ns, float64[stacks]."""
    rank_samples = samples.of(rank)
    means = []
    for mask in (group.is_slow, group.is_usual):
        here = np.isin(rank_samples.step, group.steps[mask]) & (rank_samples.code >= 0)
        means.append(
            np.bincount(rank_samples.code[here], rank_samples.dur_ns[here], len(rank_samples.stacks))
            / max(1, int(mask.sum()))
        )
    return rank_samples.stacks, means[0], means[1]
