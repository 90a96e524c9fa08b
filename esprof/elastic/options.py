"""The options of an ElasticTrainer, in groups by what they are for. Each group checks itself when it is made."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args

from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from esprof.core.assignment import Assignment
from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.registry import check_codec
from esprof.elastic.data.loaders import Loaders
from esprof.elastic.plans.source import PlanSource
from esprof.elastic.reduce.choice import Reduction
from esprof.elastic.runtime.result import StepResult
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.fingerprint import Level

Amp = Literal["bf16", "fp16"] | None
"""The type in which `torch.autocast` lets a model compute; None for the parameters' own."""

ScheduleBy = Literal["step", "epoch"]
"""The unit after which a scheduler steps."""

BeforeUpdate = Callable[[int], None]
"""Is given the number of the step, when all parameters have its mean gradient."""


@dataclass(frozen=True)
class Data:
    """The samples of a job, and how they become batches. With `Loaders`, which make batches themselves, only `batch_size`,
    `seed` and `accumulate` count."""

    dataset: Dataset[Any] | Loaders
    """The same on all ranks; `Loaders` in place of a dataset that has a state."""
    _: KW_ONLY
    batch_size: int
    """Samples in a batch of one EST."""
    seed: int = 0
    """Seed of the samples' order and of every random number."""
    accumulate: int = 1
    """Batches that each EST takes in one step; the gradient is that of all of them."""
    shuffle: bool | None = None
    """Whether each epoch has the samples in another order, which depends on the trainer's seed; None stands for yes, unless
    there is a `sampler`."""
    sampler: Iterable[int] | None = None
    """Gives the indices of an epoch's samples, those of all ESTs, as torch's samplers do: EST e takes every n-th, from the
    e-th on. It has a length, depends on nothing but `set_epoch`, if it has that, and the global generators, and is the same
    on all ranks."""
    drop_last: bool = True
    """Whether the samples that make no whole step at an epoch's end are left out. If not, the last step takes what there
    is, which may be less, or nothing, for some ESTs."""
    num_workers: int = 0
    """Processes that make batches, for all ESTs of a rank together. Their number changes no bits; 0 is for none."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a list of samples; None stands for torch's `default_collate`."""
    prefetch_factor: int | None = None
    """Batches that each of the `num_workers` makes ahead; None stands for torch's default."""
    pin_memory: bool = False
    """Whether batches are put into pinned host memory, from which they reach a GPU faster."""

    def __post_init__(self) -> None:
        check(batch_size=self.batch_size, accumulate=self.accumulate)
        check(num_workers=self.num_workers, prefetch_factor=self.prefetch_factor)
        if self.sampler is not None and self.shuffle is not None:
            raise UsageError(f"shuffle={self.shuffle} cannot be used with a sampler, which defines the order")
        if self.prefetch_factor is not None and not self.num_workers:
            raise UsageError("prefetch_factor needs num_workers")


@dataclass(frozen=True, kw_only=True)
class Updates:
    """What the script does around each update. All ranks do the same."""

    scheduler: LRScheduler | Sequence[LRScheduler] | None = None
    """Steps the learning rate; several optimizers may have one each. It steps with its optimizer."""
    scheduler_by: ScheduleBy = "step"
    """Whether schedulers step after each step, or after each epoch."""
    before_update: BeforeUpdate | None = None
    """Called with the step's number when the parameters have the step's gradient."""
    after_step: Callable[[StepResult], object] | None = None
    """Called with the result when a step is over."""
    state: Mapping[str, Stateful] | None = None
    """What the script keeps besides, by names of its own, such as a moving average of the weights: objects with
    `state_dict()` and `load_state_dict()`, the same on all ranks, which are saved and restored with the rest."""

    def __post_init__(self) -> None:
        check(scheduler_by=self.scheduler_by)

    @property
    def schedulers(self) -> tuple[LRScheduler, ...]:
        return as_tuple(self.scheduler)


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """How gradients are computed and added."""

    amp: Amp = None
    """Type of the forward and backward passes under `torch.autocast`: "bf16", "fp16" (with one loss scaler for all ESTs), or
    None for the parameters' own."""
    codec: str = "none"
    """What each EST's gradient is encoded with before it is added: "none", "fp16", "bf16", "topk:0.1" for the largest tenth
    of its entries, or one that `register_codec` has made known. Changes the training, as a learning rate does."""
    reduction: Reduction = "tree"
    """How gradients are added: "tree", whose bits depend on the number of ESTs alone; "ring", which gives the bits of
    `DistributedDataParallel` with as many processes on gloo; "all-reduce", whose bits depend on which EST runs where."""
    bucket_mb: float | None = None
    """Size of the buckets in which gradients travel, MiB, as DDP's `bucket_cap_mb`; None stands for DDP's default."""
    clip_norm: float | None = None
    """Largest norm of a step's whole gradient, to which a longer one is shortened; None for no limit."""
    find_unused: bool = False
    """Whether parameters may be left out by a loss, as with DDP's `find_unused_parameters`: they count as zero where
    others' losses reach them, and stay as they are in a step in which none does. Without, they are refused."""

    def __post_init__(self) -> None:
        check(amp=self.amp, reduction=self.reduction, bucket_mb=self.bucket_mb, clip_norm=self.clip_norm)
        check_codec(self.codec, scaled=self.amp == "fp16")


@dataclass(frozen=True)
class Checkpoint:
    """Where a job's checkpoints are, and how many. A job goes on from the last one there."""

    folder: str | Path
    """Folder of this one job, the same for all ranks."""
    _: KW_ONLY
    every: int = 0
    """Steps from one checkpoint that is written in the background to the next; 0 leaves it to `ElasticTrainer.save`."""
    keep: int = 2
    """How many checkpoints stay in the folder, the newest ones."""

    def __post_init__(self) -> None:
        check(folder=self.folder, every=self.every, keep=self.keep)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What is promised of a job's bits, and the log that shows it."""

    determinism: Level = "D1"
    """When bits are the same: "D0", if the same processes run the same ESTs again; "D1", on any processes that have one type
    of device; "hetero-relaxed" promises no bits, and so allows several types of devices."""
    hash_log: str | Path | None = None
    """File to which rank 0 writes after each step what every bit was, as hashes, for `esprof elastic diff`."""
    hash_log_values: bool = False
    """Whether the values are kept beside the hash log, to tell how far two trainings are apart. They take as much room, for
    each step, as a checkpoint."""
    verify_every: int | None = None
    """Every so many steps all ESTs are run a second time, in another order, and must come to the same bits. The first two
    steps after a start are verified in any case, and with None no others; 0 verifies none at all."""
    threads: int | None = None
    """CPU threads of each process. None stands for those that the job's checkpoint was trained with, and for 1 in a new job,
    which is what torchrun gives to processes that share a machine: the bits depend on it."""

    def __post_init__(self) -> None:
        check(determinism=self.determinism, verify_every=self.verify_every, threads=self.threads)


@dataclass(frozen=True, kw_only=True)
class Drain:
    """How a job leaves when it is asked to: by SIGTERM to one of its processes, a notice file, or `request_drain`."""

    exit_code: int = 0
    """Exit code of a process that was asked itself, and has saved."""
    follower_exit_code: int = 75
    """Exit code of a process that leaves because another one was asked; 75 is EX_TEMPFAIL. Were it 0, torchrun would hold
    that part of the job to be done."""
    notice: str | Path | None = None
    """File whose appearance asks this process to leave, as a scheduler's notice; one that is there already asks at once."""
    within_s: float = 30.0
    """Seconds from the request until the process is gone: if not by itself, then by force."""

    def __post_init__(self) -> None:
        check(exit_code=self.exit_code, follower_exit_code=self.follower_exit_code)
        check(notice=self.notice, within_s=self.within_s)


@dataclass(frozen=True)
class Tuning:
    """Lets a loop beside the job make its steps shorter while it runs, as `esprof tune` does. It is a process of its own on
    rank 0's host, and takes a CPU there for some seconds a round."""

    run: str | Path
    """Run directory of this one job, which it shares with nothing else: `telemetry` and `plan`, where these are None, are
    there."""
    _: KW_ONLY
    compression: bool = False
    """Whether a codec may be tried, which changes the training's bits, as a learning rate does."""

    def __post_init__(self) -> None:
        check(run=self.run)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where ESTs run, and where changes of that come from."""

    assignment: Assignment | None = None
    """Which ESTs run on which rank at first; None stands for evenly and contiguously."""
    plan: str | Path | PlanSource | None = None
    """Where plans for the running job come from: a file, or a `PlanKey`. See docs/how-to/elastic.md."""
    tuning: Tuning | None = None
    """A loop beside the job that finds such plans. Where there is one, or `esprof tune` has started the job, `telemetry` and
    `plan` that are None are the loop's."""
    transport: Transport | None = None
    """Connects the processes; None stands for torch.distributed, where that was initialized."""

    def assignment_of(self, n_est: int, world: int) -> Assignment:
        """Which ESTs run where at first, on `world` ranks. Raises UsageError for an assignment that does not fit."""
        assignment = self.assignment or Assignment.even(n_est, world)
        assignment.check_fits(n_est, world)
        return assignment


def as_tuple(parts: Any) -> tuple[Any, ...]:
    """One or several of a kind, or none, as a tuple."""
    if parts is None:
        return ()
    return tuple(parts) if isinstance(parts, Sequence) else (parts,)


def check(**options: object) -> None:
    """Raise UsageError for the first of these options, by its name, that makes no sense."""
    for name, value in options.items():
        holds, expected = _RULES[name]
        if not holds(value):
            raise UsageError(f"{name}={value!r} is invalid: expected {expected}")


def check_reduction(reduction: Reduction, determinism: Level) -> None:
    """Raise UsageError for a reduction that could not keep what is promised."""
    if reduction == "all-reduce" and determinism != "D0":
        raise UsageError(
            f"the all-reduce adds in an order that depends on the assignment; {determinism} does not allow that",
            remedy="Pass Gradients(reduction='tree'), or Proof(determinism='D0').",
        )


def check_steps(optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]) -> None:
    """Raise UsageError for an optimizer or scheduler whose `step` a trainer could not call."""
    parts: list[Optimizer | LRScheduler] = [*optimizers, *schedulers]
    for part in parts:
        try:
            inspect.signature(type(part).step).bind(part)
        except TypeError as error:
            raise UsageError(
                f"step() of {type(part).__name__} needs arguments that the trainer does not have: {error}",
                remedy="Use an optimizer without a closure and a scheduler without a metric.",
            ) from error


_Rule = tuple[Callable[[Any], bool], str]
"""(whether a value makes sense, what the value has to be in words)."""


def _at_least(least: int) -> _Rule:
    return lambda value: isinstance(value, Integral) and int(value) >= least, f"an integer of at least {least}"


def _none_or_at_least(least: int) -> _Rule:
    holds, expected = _at_least(least)
    return lambda value: value is None or holds(value), f"None or {expected}"


def _one_of(*values: str | None) -> _Rule:
    return lambda value: value in values, " or ".join(map(repr, values))


def _none_or(rule: _Rule) -> _Rule:
    holds, expected = rule
    return lambda value: value is None or holds(value), f"None or {expected}"


_POSITIVE_OR_NONE: _Rule = (
    lambda value: value is None or (isinstance(value, Real) and float(value) > 0),
    "None or a number above 0",
)

_CODE: _Rule = (
    lambda value: isinstance(value, Integral) and int(value) in range(256),
    "an integer from 0 to 255",
)

_PATH: _Rule = (lambda value: isinstance(value, str | Path) and str(value) != "", "a path")

_RULES: dict[str, _Rule] = {
    "verify_every": _none_or(_at_least(0)),
    "threads": _none_or(_at_least(1)),
    "n_est": _at_least(1),
    "batch_size": _at_least(1),
    "scheduler_by": _one_of(*get_args(ScheduleBy)),
    "accumulate": _at_least(1),
    "num_workers": _at_least(0),
    "prefetch_factor": _none_or_at_least(1),
    "amp": _one_of(None, "bf16", "fp16"),
    "reduction": _one_of(*get_args(Reduction)),
    "bucket_mb": _POSITIVE_OR_NONE,
    "clip_norm": _POSITIVE_OR_NONE,
    "folder": _PATH,
    "run": _PATH,
    "every": _at_least(0),
    "keep": _at_least(1),
    "determinism": _one_of(*get_args(Level)),
    "exit_code": _CODE,
    "follower_exit_code": _CODE,
    "notice": _none_or(_PATH),
    "within_s": (lambda value: isinstance(value, Real) and 0 < float(value) < inf, "a number above 0"),
}
