"""Option groups of an ElasticTrainer. Each group checks its values when it is created."""

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
"""Called with the step number once all parameters have the mean gradient of the step."""


@dataclass(frozen=True)
class Data:
    """The samples of a job and how they are batched. `Loaders` make their own batches: with them only `batch_size`,
    `seed` and `accumulate` have an effect."""

    dataset: Dataset[Any] | Loaders
    """The same on all ranks. For a dataset with state, pass `Loaders` instead."""
    _: KW_ONLY
    batch_size: int
    """Samples in a batch of one EST."""
    seed: int = 0
    """Seed of the samples' order and of every random number."""
    accumulate: int = 1
    """Micro-batches of each EST per step, over which the gradient is accumulated."""
    shuffle: bool | None = None
    """Whether samples are reshuffled each epoch, in an order derived from `seed`. None: yes, unless there is a
    `sampler`."""
    sampler: Iterable[int] | None = None
    """Yields the sample indices of an epoch for all ESTs, like torch's samplers: EST e takes every `n_est`-th,
    starting with the e-th. Must have a length, be the same on all ranks, and depend only on the global generators and
    `set_epoch`."""
    drop_last: bool = True
    """Whether to drop the incomplete step at the end of an epoch. If not, some ESTs get fewer samples in it, or
    none."""
    num_workers: int = 0
    """Loader processes shared by all ESTs of a rank; 0 loads in the training process. Does not change the bits."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Combines a list of samples into a batch; None: torch's `default_collate`."""
    prefetch_factor: int | None = None
    """Batches that each loader process prepares ahead; None: torch's default."""
    pin_memory: bool = False
    """Whether batches are copied to pinned host memory, which speeds up copies to a GPU."""

    def __post_init__(self) -> None:
        check(batch_size=self.batch_size, accumulate=self.accumulate)
        check(num_workers=self.num_workers, prefetch_factor=self.prefetch_factor)
        if self.sampler is not None and self.shuffle is not None:
            raise UsageError(f"shuffle={self.shuffle} cannot be used with a sampler, which defines the order")
        if self.prefetch_factor is not None and not self.num_workers:
            raise UsageError("prefetch_factor needs num_workers")


@dataclass(frozen=True, kw_only=True)
class Updates:
    """What happens before and after each update. The same on all ranks."""

    scheduler: LRScheduler | Sequence[LRScheduler] | None = None
    """Learning rate scheduler, or one for each of several optimizers. Steps together with its optimizer."""
    scheduler_by: ScheduleBy = "step"
    """Whether schedulers step after each training step or after each epoch."""
    before_update: BeforeUpdate | None = None
    """Called with the step's number when the parameters have the step's gradient."""
    after_step: Callable[[StepResult], object] | None = None
    """Called with the result when a step is over."""
    state: Mapping[str, Stateful] | None = None
    """Further state of the script by name, such as a moving average of the weights. Objects with `state_dict()` and
    `load_state_dict()`, the same on all ranks; saved in checkpoints and restored from them."""

    def __post_init__(self) -> None:
        check(scheduler_by=self.scheduler_by)

    @property
    def schedulers(self) -> tuple[LRScheduler, ...]:
        return as_tuple(self.scheduler)


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """How gradients are computed and added."""

    amp: Amp = None
    """Type of the forward and backward passes under `torch.autocast`: "bf16", "fp16" (with one loss scaler for all
    ESTs), or None for the parameters' own."""
    codec: str = "none"
    """Codec of each EST's gradient: "none", "fp16", "bf16", "topk:0.1" for the largest tenth of its entries, or a codec
    registered with `register_codec`. Changes the training, as a learning rate does."""
    reduction: Reduction = "tree"
    """How gradients are added: "tree", whose bits depend on the number of ESTs alone; "ring", which gives the bits of
    `DistributedDataParallel` with as many processes on gloo; "all-reduce", whose bits depend on which EST runs
    where."""
    bucket_mb: float | None = None
    """Bucket size of gradient communication, MiB, like DDP's `bucket_cap_mb`; None: DDP's default."""
    clip_norm: float | None = None
    """Maximum norm to which the gradient of a step is clipped; None: no clipping."""
    find_unused: bool = False
    """Whether a loss may leave out parameters, like DDP's `find_unused_parameters`. Their gradient is zero if the loss
    of another EST reaches them; otherwise the step does not update them. If False, such parameters are an error."""

    def __post_init__(self) -> None:
        check(amp=self.amp, reduction=self.reduction, bucket_mb=self.bucket_mb, clip_norm=self.clip_norm)
        check_codec(self.codec, scaled=self.amp == "fp16")


@dataclass(frozen=True)
class Checkpoint:
    """Where checkpoints are stored, and how many. A job resumes from the last one."""

    folder: str | Path
    """Folder of this job alone, the same for all ranks."""
    _: KW_ONLY
    every: int = 0
    """Steps between checkpoints, which are written in the background; 0: only `ElasticTrainer.save` writes
    checkpoints."""
    keep: int = 2
    """Number of checkpoints to retain, the newest ones."""
    max_overhead: float | None = None
    """Share of the training time that checkpoints may take, such as 0.035. `every` is then only the first interval: it
    becomes longer or shorter as the measured cost of checkpoints requires. None leaves the interval as it is."""
    new_script: bool = False
    """Whether the job may go on with other code of its model, loss or dataset, or with other data, than the checkpoint was
    trained with; its bits then are other ones."""

    def __post_init__(self) -> None:
        check(folder=self.folder, every=self.every, keep=self.keep, max_overhead=self.max_overhead)
        if self.max_overhead is not None and not self.every:
            raise UsageError("max_overhead needs every, the interval to start with")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The guarantee of bitwise reproducibility, and the log that proves it."""

    determinism: Level = "D1"
    """When bits are the same: "D0", if the same processes run the same ESTs again; "D1", on any processes that have
    one type of device; "hetero-relaxed" promises no bits, and so allows several types of devices."""
    hash_log: str | Path | None = None
    """File to which rank 0 writes hashes of the training state after each step, for `esprof elastic diff`."""
    hash_log_values: bool = False
    """Whether values are stored in addition to hashes, to measure the distance between two trainings. Takes as much
    disk space per step as a checkpoint."""
    prove_every: int | None = None
    """Steps between proofs, in which one EST runs a second time, on another rank if there is one, and must have the same
    bits. None: as many as make a proof cost at most 1 % of the time, 150 divided by the ESTs of the fullest rank, or a few
    more; 0: no proofs. In the first two steps after a start, all ESTs run a second time."""
    on_divergence: Literal["stop", "warn"] = "stop"
    """Whether a job whose bits have diverged stops, or goes on with a warning, without further proofs."""
    threads: int | None = None
    """CPU threads of each process, on which the bits depend. None: the number with which the checkpoint was trained,
    or 1 in a new job, as torchrun sets for processes that share a machine."""

    def __post_init__(self) -> None:
        check(determinism=self.determinism, prove_every=self.prove_every, threads=self.threads)
        check(on_divergence=self.on_divergence)


@dataclass(frozen=True, kw_only=True)
class Drain:
    """How a job leaves when it is asked to: by SIGTERM to one of its processes, a notice file, or `request_drain`."""

    exit_code: int = 0
    """Exit code of a process that was asked to leave and has saved."""
    follower_exit_code: int = 75
    """Exit code of a process that leaves because another one was asked; 75 is EX_TEMPFAIL. With 0, torchrun
    would consider the process finished."""
    notice: str | Path | None = None
    """File that asks this process to leave as soon as it exists, such as a preemption notice of a scheduler."""
    within_s: float = 30.0
    """Seconds from the request until the process is ended by force."""

    def __post_init__(self) -> None:
        check(exit_code=self.exit_code, follower_exit_code=self.follower_exit_code)
        check(notice=self.notice, within_s=self.within_s)


@dataclass(frozen=True)
class Tuning:
    """A tuning loop that shortens the steps of the running job, as `esprof tune` does. Runs as a separate process on
    rank 0's host and uses one CPU for some seconds per round."""

    run: str | Path
    """Run directory of this job alone. Default location of `telemetry` and `plan`."""
    _: KW_ONLY
    compression: bool = False
    """Whether to try codecs. A codec changes the training, as a learning rate does."""

    def __post_init__(self) -> None:
        check(run=self.run)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where ESTs run, and the source of plans that move them."""

    assignment: Assignment | None = None
    """Initial assignment of ESTs to ranks; None: even and contiguous."""
    plan: str | Path | PlanSource | None = None
    """Source of plans for the running job: a file or a `PlanKey`. See docs/how-to/elastic.md."""
    tuning: Tuning | None = None
    """Tuning loop that creates such plans. With it, or if `esprof tune` has started the job, `telemetry` and `plan`
    default to those of the loop."""
    transport: Transport | None = None
    """Connects the processes; None: torch.distributed, if it is initialized."""

    def assignment_of(self, n_est: int, world: int) -> Assignment:
        """The initial assignment on `world` ranks. Raises UsageError for an assignment that does not fit."""
        assignment = self.assignment or Assignment.even(n_est, world)
        assignment.check_fits(n_est, world)
        return assignment


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One or several of a kind, or none, as a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


def check(**options: object) -> None:
    """Raise UsageError for the first option, by name, whose value is invalid."""
    for name, value in options.items():
        holds, expected = _RULES[name]
        if not holds(value):
            raise UsageError(f"{name}={value!r} is invalid: expected {expected}")


def check_reduction(reduction: Reduction, determinism: Level) -> None:
    """Raise UsageError for a reduction that cannot guarantee this level."""
    if reduction == "all-reduce" and determinism != "D0":
        raise UsageError(
            f"the all-reduce adds in an order that depends on the assignment; {determinism} does not allow that",
            remedy="Pass Gradients(reduction='tree'), or Proof(determinism='D0').",
        )


def check_steps(optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]) -> None:
    """Raise UsageError for an optimizer or scheduler whose `step` a trainer cannot call."""
    steppers: list[Optimizer | LRScheduler] = [*optimizers, *schedulers]
    for stepper in steppers:
        try:
            inspect.signature(type(stepper).step).bind(stepper)
        except TypeError as error:
            raise UsageError(
                f"step() of {type(stepper).__name__} needs arguments that the trainer does not have: {error}",
                remedy="Use an optimizer without a closure and a scheduler without a metric.",
            ) from error


_Rule = tuple[Callable[[Any], bool], str]
"""(whether a value is valid, description of valid values)."""


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
    "prove_every": _none_or(_at_least(0)),
    "on_divergence": _one_of("stop", "warn"),
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
    "max_overhead": (
        lambda value: value is None or (isinstance(value, Real) and 0 < float(value) <= 1),
        "None or a number above 0, at most 1",
    ),
    "determinism": _one_of(*get_args(Level)),
    "exit_code": _CODE,
    "follower_exit_code": _CODE,
    "notice": _none_or(_PATH),
    "within_s": (lambda value: isinstance(value, Real) and 0 < float(value) < inf, "a number above 0"),
}
