"""Time that functions of the job's own code take in the steps of the whole run, estimated from sampled stacks."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.samples.recorded_work import RecordedSamples, RecordedWork
from esprof.analyzers.steps.step_groups import MIN_STEPS, SLOW_TIMES_MEDIAN
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.run.stacks import SourceLocation, functions_of, is_own, location_of

MIN_SAMPLES = 8
"""Fewest samples of a function, over all ranks, from which its time is estimated. Of a function of one rank alone, recorded
steps in which it was sampled count, too."""

MAX_SHARE_OF_TRAINING = 0.1
"""Largest share of a function's samples in training work that it calls, or that calls it. A function with a larger share
is part of the training."""

MIN_SHARE_OF_STACKS_LEADING = 0.9
"""A function on at least this share of all stacks contains the training loop or leads to it. Its lines are reported
separately."""

MIN_SHARE_OF_STEP = 0.03
"""Smallest share of a step that is reported from samples alone: smaller ones are rarely statistically significant."""

MIN_SHARE_PASSED_ON = 0.8
"""A function that spends at least this share of its time in a callee is reported under the callee's name."""

_TRAINING = re.compile(
    r"torch/nn/modules/module\.py\(\d+\): .*_call_impl|: _engine_run_backward$"
    r"|torch/(amp|distributed|nn/utils|optim|utils/data)/",
    re.MULTILINE,
)
"""Matches callees that are part of the training: modules, the backward pass, the optimizer with clipping and scaling of
gradients, input, collectives."""

_INPUT = "torch/utils/data/"
"""Substring of a frame above a function that makes batches, or below one that waits for them."""

_DISTRIBUTED = "torch/distributed/"
"""Substring of a frame below a function that calls a collective."""

_CALLS_MODEL = ("_call_impl", ": _engine_run_backward")
"""Ends of frames that call a module's forward pass, a backward pass, or a hook."""


@dataclass(frozen=True)
class _Called:
    """A function of the job's own code on a stack."""

    function: str
    """The function, as `file: function`; of the training loop and what leads to it, the `line` instead."""
    line: str
    """The line, as `file(line): function`."""
    is_training: bool
    """Whether it is part of the training on this stack: it calls the model, for example, or is called by it."""
    is_input: bool
    """Whether it makes a batch on this stack, or waits for one."""
    is_collective: bool
    """Whether it calls a collective on this stack, in which it may wait for other ranks."""


@dataclass(frozen=True)
class OwnFunction:
    """A function of the job's own code that is not part of the training, and its time."""

    location: SourceLocation
    """The line at which most of its time is spent, and the innermost frame below that line."""
    functions: frozenset[str]
    """The function or line, and its callees in the job's own code, as `_Called.function`."""
    took_ns: dict[Rank, float]
    """Time in a mean step without profiler, by rank, ns."""
    ran: float
    """Share of that time in which the threads ran on a CPU."""
    on_tensors: bool
    """Whether it mostly runs long operations on tensors."""
    measured: MeasuredPrice


class FunctionTimes:
    """Samples of the training threads in the steps without profiler, garbage collections excluded."""

    def __init__(self, samples: JobSamples) -> None:
        self._samples = samples
        self._run = run = samples.run
        self._job = samples.steps
        self._steps = self._job.numbers("plain")
        self._recorded = RecordedSamples(samples)
        self._stacks: list[str] = []
        self._rank_of_stack: list[int] = []
        """Column of the rank of each stack."""
        of_ranks = [self._samples_of(rank) for rank in run.ranks]
        # One entry per sample: column of the rank, position of the step among those without profiler, stack, duration (ns),
        # and the time in which the thread ran (ns).
        self._rank, self._at, self._stack, self._ns, self._ran = (
            np.concatenate([np.zeros(0, np.int64), *columns]) for columns in zip(*of_ranks, strict=True)
        )

    def _samples_of(self, rank: Rank) -> tuple[np.ndarray, ...]:
        rank_samples = self._samples.of(rank)
        inside = (rank_samples.code >= 0) & np.isin(rank_samples.step, self._steps)
        end, dur = rank_samples.at_ns[inside], rank_samples.dur_ns[inside]
        own_ns = dur - self._samples.collecting(rank).collecting_ns(end - dur, end)
        number = len(self._stacks) + rank_samples.code[inside]
        self._stacks += rank_samples.stacks
        column = self._run.ranks.index(rank)
        self._rank_of_stack += [column] * len(rank_samples.stacks)
        ran_ns = own_ns * rank_samples.cpu_ns[inside] / np.maximum(dur, 1)
        rank_of_sample = np.full(int(inside.sum()), column)
        return rank_of_sample, np.searchsorted(self._steps, rank_samples.step[inside]), number, own_ns, ran_ns

    def of(self, function: re.Pattern[str]) -> MeasuredPrice | None:
        """Time of the functions that match the pattern (as `file(line): function`) in a mean step, including callees, as a
        mean over ranks.

        None if there are too few samples, or if the functions are part of the training: the duration of a step without them
        is then unknown.
        """
        found = [next((one for one in chain if function.search(one.line)), None) for chain in self._chains]
        return self._measured(found, np.ones(len(self._steps), bool)) if self._is_own(found) else None

    def own(self) -> Iterator[OwnFunction]:
        """The functions, and lines of the training loop, that take much of a step on the mean rank, longest first.

        Functions that compute something with a gradient, such as a loss, are part of the training and left out. Slow steps
        are excluded: they have findings of their own.
        """
        named: set[str] = set()
        for function, spent in self._costly():
            if function in named or spent.mean() < MIN_SHARE_OF_STEP * self._step_ns:
                continue
            found = self._calls_of(function)
            if not self._is_own(found):
                continue
            has_gradient = self._recorded_work(function).has_gradient
            # Of a line of the training loop it must be known that the training does not need it.
            is_needed = self._is_line(found) if has_gradient is None else has_gradient
            if not is_needed and (one := self._described(function, found)):
                named |= one.functions
                yield one

    def alone(self) -> Iterator[OwnFunction]:
        """The functions that take much of a usual step on one rank and hardly any time on the others, whatever they call.
        Functions that make batches or wait for them, and those that only wait for other ranks, are left out."""
        if len(self._run.ranks) < 2:
            return
        costly = self._costly()
        on_one_rank = {
            function for function, spent in costly if np.sort(spent)[-2] <= MAX_SHARE_OF_TRAINING * spent.max()
        }
        named: set[str] = set()
        for function, spent in costly:
            if function not in on_one_rank - named or spent.max() < MIN_SHARE_OF_STEP * self._step_ns:
                continue
            found = self._calls_of(function)
            calls = [called for called in found if called]
            is_other = any(called.is_input for called in calls) or all(called.is_collective for called in calls)
            if (
                not is_other
                and self._times_seen(function, found) >= MIN_SAMPLES
                and (one := self._described(function, found, on_one_rank))
            ):
                named |= one.functions
                yield one

    def _times_seen(self, function: str, found: list[_Called | None]) -> int:
        """Samples of the function in steps without profiler, and recorded steps with any: samples in windows are dense."""
        seen = int(self._is_in(found).sum())
        for rank in self._run.ranks:
            samples = self._samples.of(rank)
            here = samples.matches(lambda stack: any(one.function == function for one in self._called(stack)))
            seen += len(np.unique(samples.step[here & ~np.isin(samples.step, self._steps)]))
        return seen

    def _costly(self) -> list[tuple[str, np.ndarray]]:
        """(function or line, its time in a usual step of each rank in ns): longest first, and callers before callees."""
        if len(self._steps) < MIN_STEPS:
            return []
        spent: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(self._run.ranks)))
        depth: dict[str, int] = {}
        per_step = self._usual_by_stack / self._is_usual.sum()
        for rank, chain, ns in zip(self._rank_of_stack, self._chains, per_step.tolist(), strict=True):
            for function in {one.function for one in chain}:
                spent[function][rank] += ns
            for at, one in enumerate(chain):
                depth[one.function] = min(at, depth.get(one.function, at))
        # A caller that does nothing else takes as long as its callee: the depth decides.
        return sorted(spent.items(), key=lambda item: (-round(item[1].sum()), depth[item[0]]))

    def _calls_of(self, function: str) -> list[_Called | None]:
        """The outermost call of the function on each stack; None where the stack has none."""
        return [next((one for one in chain if one.function == function), None) for chain in self._chains]

    def _described(
        self, function: str, found: list[_Called | None], among: Collection[str] | None = None
    ) -> OwnFunction | None:
        """Describe a function under the name of the deepest callee `among` these that takes most of its time. None if it
        passes its time on to several callees: these are reported themselves."""
        within: Counter[str] = Counter()
        inner: Counter[str] = Counter()
        lines: dict[str, Counter[SourceLocation]] = defaultdict(Counter)
        depth: dict[str, int] = {}
        for number, one in enumerate(found):
            below = self._chains[number][self._chains[number].index(one) :] if one else []
            below = [called for called in below if among is None or called.function in among]
            last, ns = self._stacks[number].rsplit("\n", 1)[-1], round(self._usual_by_stack[number])
            # The dict retains the innermost line of a function that calls itself.
            for at, called in enumerate({called.function: called for called in below}.values()):
                within[called.function] += ns
                depth[called.function] = max(at, depth.get(called.function, 0))
                lines[called.function][SourceLocation(called.line, None if last == called.line else last)] += ns
            inner[below[-1].function if below else ""] += ns
        total_ns = within[function]
        deepest = max(
            (name for name in within if within[name] >= MIN_SHARE_PASSED_ON * total_ns), key=lambda name: depth[name]
        )
        if inner[deepest] < (1 - MIN_SHARE_PASSED_ON) * total_ns:
            return None
        inside = self._is_in(found) & self._is_usual[self._at]
        of_rank = np.bincount(self._rank[inside], self._ns[inside], len(self._run.ranks)) / self._is_usual.sum()
        return OwnFunction(
            location=lines[deepest].most_common(1)[0][0],
            functions=frozenset(within),
            took_ns=dict(zip(self._run.ranks, of_rank.tolist(), strict=True)),
            ran=min(1.0, float(self._ran[inside].sum() / self._ns[inside].sum())),
            on_tensors=self._recorded_work(function).is_on_tensors,
            measured=self._measured(found, self._is_usual),
        )

    @cached_property
    def _chains(self) -> list[list[_Called]]:
        """The functions of the job's own code on each stack, outermost first; see `_Called.function`."""
        return [self._called(stack) for stack in self._stacks]

    def _called(self, stack: str) -> list[_Called]:
        return [replace(one, function=one.line) if one.function in self._leading else one for one in _chain(stack)]

    @cached_property
    def _leading(self) -> set[str]:
        return leading_functions(self._samples, self._run.ranks)

    @cached_property
    def _step_ns(self) -> float:
        return float(self._job.durations_ns(self._steps).mean())

    @cached_property
    def _is_usual(self) -> np.ndarray:
        """The steps that are not slow, bool[steps]."""
        took = self._job.durations_ns(self._steps)
        usual: np.ndarray = took <= SLOW_TIMES_MEDIAN * np.median(took)
        return usual

    @cached_property
    def _usual_by_stack(self) -> np.ndarray:
        """Time of each stack in the steps that are not slow, ns, float64[stacks]."""
        inside = self._is_usual[self._at]
        return np.bincount(self._stack[inside], self._ns[inside], len(self._stacks))

    def _is_in(self, found: list[_Called | None]) -> np.ndarray:
        """Mask of the samples whose stack has an entry in `found`."""
        mask: np.ndarray = np.array([one is not None for one in found] + [False])[self._stack]
        return mask

    @staticmethod
    def _is_line(found: list[_Called | None]) -> bool:
        return any(one.function == one.line for one in found if one)

    def _is_own(self, found: list[_Called | None]) -> bool:
        count = int(self._is_in(found).sum())
        in_training = int(self._is_in([one if one and one.is_training else None for one in found]).sum())
        return len(self._steps) >= MIN_STEPS and count >= MIN_SAMPLES and in_training <= MAX_SHARE_OF_TRAINING * count

    def _measured(self, found: list[_Called | None], steps: np.ndarray) -> MeasuredPrice:
        """Mean time of the functions in the steps of this mask, bool[steps]."""
        inside = self._is_in(found)
        took = np.bincount(self._at[inside], self._ns[inside], len(self._steps))[steps] / len(self._run.ranks)
        return MeasuredPrice(saving_ns=float(took.mean()), margin_ns=mean_margin(took), step_ns=self._step_ns)

    def _recorded_work(self, function: str) -> RecordedWork:
        """What runs at the samples of the function in recorded steps."""
        return self._recorded.of(lambda stack: any(one.function == function for one in self._called(stack)))


@lru_cache(maxsize=1 << 16)
def _chain(stack: str) -> list[_Called]:
    """The functions of the job's own code on a stack, outermost first, all as `file: function`.

    Cached: ranks have most stacks in common.
    """
    found, frames = [], stack.split("\n")
    for at, line in enumerate(frames):
        if is_own(line) and (called := frame(line)).file:
            above, below = frames[: at + 1], frames[at + 1 :]
            is_input = any(_INPUT in other for other in frames)
            is_training = is_input or _is_training(above, below)
            is_collective = any(_DISTRIBUTED in other for other in below)
            found.append(_Called(f"{called.file}: {called.function}", line, is_training, is_input, is_collective))
    return found


def _is_training(above: list[str], below: list[str]) -> bool:
    """Whether a function is part of the model or calls training work, by the frames down to its own and those below."""
    # A hook is called in the same way as forward and backward, but has another name.
    called = max((number for number, line in enumerate(above) if line.endswith(_CALLS_MODEL)), default=len(above))
    is_model = any(line.endswith(("forward", "backward")) for line in above[called + 1 :])
    return is_model or bool(_TRAINING.search("\n".join(below)))


def is_outside_training(samples: JobSamples, wanted: Callable[[SourceLocation], bool]) -> bool:
    """Whether windows with stacks show the `wanted` locations, at most `MAX_SHARE_OF_TRAINING` of their samples as part of
    the training."""
    count = training = 0
    for rank in samples.run.ranks:
        rank_samples = samples.of(rank)
        here = (rank_samples.code >= 0) & np.isin(rank_samples.step, samples.steps.in_phase(rank, "stack"))
        times = np.bincount(rank_samples.code[here], minlength=len(rank_samples.stacks))
        for at in np.flatnonzero(times).tolist():
            stack = rank_samples.stacks[at]
            if wanted(location_of(stack)):
                count += int(times[at])
                training += int(times[at]) * any(one.is_training for one in _chain(stack)[-1:])
    return count > 0 and training <= MAX_SHARE_OF_TRAINING * count


def leading_functions(samples: JobSamples, ranks: Sequence[Rank]) -> set[str]:
    """The functions, as `file: function`, that are on nearly all stacks in windows with stacks."""
    of_function: dict[str, float] = defaultdict(float)
    total = 0.0
    for rank in ranks:
        rank_samples = samples.of(rank)
        here = (rank_samples.code >= 0) & np.isin(rank_samples.step, samples.steps.in_phase(rank, "stack"))
        of_stack = np.bincount(rank_samples.code[here], rank_samples.dur_ns[here], len(rank_samples.stacks))
        total += float(of_stack.sum())
        for at in np.flatnonzero(of_stack).tolist():
            for function in functions_of(rank_samples.stacks[at]):
                of_function[function] += of_stack[at]
    return {function for function, ns in of_function.items() if ns >= MIN_SHARE_OF_STACKS_LEADING * total}
