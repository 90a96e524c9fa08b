"""Asks esprof about jobs, and holds what it says against the truth."""

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.known.asked import INPUT, LATE, STAGES, Said, ask
from benchmarks.known.changes import AS_IT_RAN, true_steps
from benchmarks.known.jobs import SHAPES, Job, job
from benchmarks.known.kineto import write
from benchmarks.known.machine import run
from benchmarks.known.program import Kind
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.whatif.error.model_errors import JobClass

ON_GPUS = (
    "gpu=2x", "gpu=0.5x", "rank0.gpu=2x", "cpu=2x", "host=2x", "network=2x", "network=0.5x", "kernel[gemm]=2x",
    "collective[AllReduce|AllGather]=2x", "communication=0", "overlap=perfect", "data=0", "straggler=fix",
    "allocator=0", "sync=0", "gpu=2x,network=2x",
)  # fmt: skip
ON_CPUS = (
    "cpu=2x", "rank0.cpu=2x", "host=2x", "network=2x", "network=0.5x", "kernel[mm]=2x", "collective[all_reduce]=2x",
    "communication=0", "overlap=perfect", "data=0", "straggler=fix",
)  # fmt: skip
BUCKETS = ("bucket_mb=25", "bucket_mb=50", "bucket_mb=100", "bucket_mb=10000", "bucket_mb=12", "bucket_mb=6")
"""On jobs whose buckets are closed at 25 MiB, the first of some at 1 MiB."""

APART = "streams=apart"
"""On jobs whose collectives are all on one stream."""

FELT = 0.03
"""A planted cause that costs less of a step than this need not be found."""


@dataclass(frozen=True)
class Verdict:
    """One answer and the truth, µs. `before` is the step as it ran; without `predicted` the answer was refused."""

    shape: str
    seed: int
    scenario: str
    before: float
    truth: float
    said_before: float
    predicted: float | None
    low: float
    high: float
    saving: tuple[float, float]
    reason: str
    traits: tuple[str, ...]

    @property
    def error_pct(self) -> float:
        assert self.predicted is not None
        return 100 * (self.predicted / self.truth - 1) if self.truth else 0.0

    @property
    def gain_error_pct(self) -> float:
        """By how much of the step the gain is off."""
        assert self.predicted is not None
        return 100 * ((self.said_before - self.predicted) - (self.before - self.truth)) / self.before

    @property
    def holds(self) -> bool:
        """Whether the interval of the step time holds the truth, rounding aside."""
        return self.low - 0.01 <= self.truth <= self.high + 0.01

    @property
    def holds_gain(self) -> bool:
        gain = self.before - self.truth
        return self.saving[0] - 0.01 <= gain <= self.saving[1] + 0.01

    @property
    def job(self) -> JobClass:
        """The class of job, as intervals have it (`esprof.replay.whatif.error.model_errors`)."""
        return "partial" if "rank missing" in self.traits else "cpu" if self.shape == "gloo" else "gpu"

    @property
    def model_error(self) -> float:
        """By how much the gain is off, as a share of the step before or after, whichever is longer."""
        assert self.predicted is not None
        return abs(self.gain_error_pct) / 100 * self.before / max(self.before, self.predicted)


@dataclass(frozen=True)
class Blame:
    """Whom `diagnose` names as late, first first, and whom it should."""

    shape: str
    seed: int
    planted: int | None
    kind: str
    felt: float
    """Share of the step that the planted cause costs."""
    is_uneven: bool
    named: tuple[int, ...]
    others: float
    """Share of the step that input data costs beyond the planted cause: of all ranks, and not planted."""
    position: int | None
    """Position of the finding that names the planted rank alone, among all findings with a saving; None if none does."""

    @property
    def is_largest(self) -> bool:
        """Whether nothing that was not planted costs more."""
        return self.felt >= self.others


@dataclass(frozen=True)
class Judged:
    """All about one job; with `failure`, nothing but that."""

    shape: str
    seed: int
    said: Said | None = None
    step_error_pct: float = 0.0
    """How far the step time that esprof measured is from the true one; 0 for blocks of repeated work."""
    verdicts: tuple[Verdict, ...] = ()
    blame: Blame | None = None
    failure: str = ""


def judge(
    shape: str,
    seed: int,
    max_error_pct: float,
    rules: Rules = ALL_RULES,
    steps: int | None = None,
    *,
    findings_only: bool = False,
) -> Judged:
    """Write, ask and judge one job, with a window of so many `steps` if given; with `findings_only` without what-ifs. What
    fails is the answer, with its last line and source location."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = partial(job, shape, seed, steps=steps)
            return _judge(made, Path(folder), max_error_pct, rules, () if findings_only else None)
    except Exception as error:  # noqa: BLE001 - Whatever esprof trips over is counted and shown.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Judged(
            shape, seed, failure=f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        )


def _judge(
    made: Callable[..., Job], folder: Path, max_error_pct: float, rules: Rules, scenarios: tuple[str, ...] | None
) -> Judged:
    """`made` makes the job, with what is else than usual; None asks all `scenarios`.

    The truth is known of steps, not of blocks of repeated work: of these, only findings are judged, by all steps.
    """
    one = made()
    write(folder, one.program, run(one.program), one.groups, one.recording)
    said = ask(folder, _scenarios(one) if scenarios is None else scenarios, max_error_pct, rules)
    without = () if one.recording.missing is None else (one.recording.missing,)

    def true_us(scenario: str) -> float:
        program, change = one.program, scenario
        if scenario.startswith("bucket_mb="):
            program, change = made(float(scenario.partition("=")[2])).program, AS_IT_RAN
        elif scenario == APART:
            program, change = made(apart=True).program, AS_IT_RAN
        took = true_steps(program, change, without, None if one.recording.steps else one.recording.first)
        return fmean(took[number] for number in (said.steps if said.unit == "step" else took)) / 1e3

    before = true_us(AS_IT_RAN)
    verdicts = tuple(
        Verdict(
            one.shape, one.seed, answer.scenario, before, true_us(answer.scenario), said.step_us,
            answer.predicted_us, answer.low_us, answer.high_us, answer.saving_us, answer.reason, one.traits,
        )
        for answer in said.answers if said.unit == "step"
    )  # fmt: skip
    step_error = 100 * (said.step_us / before - 1) if said.unit == "step" else 0.0
    blame = _blame(one, said, true_us, before) if SHAPES[one.shape].is_common else None
    return Judged(one.shape, one.seed, said, step_error, verdicts, blame)


def _scenarios(one: Job) -> tuple[str, ...]:
    if one.shape == "buckets":
        return BUCKETS
    if one.shape == "queue":
        return (APART,)
    return ON_GPUS if one.program.devices else ON_CPUS


def _blame(one: Job, said: Said, true_us: Callable[[str], float], before: float) -> Blame:
    plant = one.plant
    # Slow input is a finding of its own; a rank that is named there is named for it.
    is_input = plant is not None and plant.kind is Kind.LOAD
    is_compute = plant is not None and plant.kind is Kind.KERNEL
    names = partial(_names, with_input=is_input, with_stages=is_compute)
    named = tuple(dict.fromkeys(rank for finding, ranks in said.named if names(finding, ranks) for rank in ranks))
    priced = [one for one, saving in zip(said.named, said.savings_us, strict=True) if saving]
    right = [at for at, one in enumerate(priced) if plant and names(*one) and one[1] == (plant.rank,)]
    # Nobody can name a rank of which there is no file.
    felt = others = 0.0
    if plant and plant.rank != one.recording.missing:
        fixed = true_us("straggler=fix")
        felt, others = 1 - fixed / before, (fixed - true_us("straggler=fix,data=0")) / before
    return Blame(
        one.shape,
        one.seed,
        plant.rank if plant else None,
        plant.kind if plant else "",
        felt,
        one.is_uneven,
        named,
        others,
        right[0] if right else None,
    )


def _names(finding: str, ranks: tuple[int, ...], *, with_input: bool, with_stages: bool) -> bool:
    """Whether a finding names its ranks as late."""
    is_alone = len(ranks) == 1
    return (
        finding in LATE
        or (with_input and finding.startswith(INPUT) and is_alone)
        or (with_stages and finding == STAGES and is_alone)
    )
