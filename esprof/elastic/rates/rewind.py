"""A job's state in memory, to which it goes back after steps that were only tried."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esprof.core.assignment import Assignment
from esprof.core.errors import UsageError
from esprof.elastic.checkpoint.snapshot import NamedTensors, capture, restore
from esprof.elastic.runtime.result import StepResult

if TYPE_CHECKING:
    from esprof.elastic.trainer import ElasticTrainer


class _NoHashes:
    """Takes the place of the step-hash log while steps are tried."""

    def write(self, result: StepResult, assignment: Assignment) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Mark:
    """The state of a job between two steps on this rank: model, optimizers, random numbers, loaders and counters."""

    step: int
    """Number of the next step."""
    tensors: NamedTensors
    """In host memory, about as large as a checkpoint."""
    assignment: Assignment
    proven: int | None
    """The last step that is proven."""
    restored: frozenset[str]
    """What a checkpoint had set of the script's state besides the model."""


def mark(trainer: "ElasticTrainer") -> Mark:
    """The present state. All ranks call this between the same two steps."""
    tensors = capture(trainer.state, whole=True)
    # What this rank alone has changed in attributes comes back, too.
    tensors = {name if name.startswith("est/") else _shared(name): tensor for name, tensor in tensors.items()}
    restored = frozenset(trainer.state.reached.restored)
    return Mark(trainer.next_step, tensors, trainer.assignment, trainer.state.proof.proven, restored)


def rewind(trainer: "ElasticTrainer", to: Mark) -> None:
    """Go back to a mark: the next step is that of the mark, with the bits that it would have had. All ranks call this.

    Raises UsageError if ESTs have moved since.
    """
    if trainer.assignment != to.assignment:
        raise UsageError(
            f"ESTs have moved since step {to.step}, so that the job cannot go back to it",
            remedy="Move ESTs between stages only, and give the trainer no plan.",
        )
    # Optimizers keep the tensors that they are given, and change them.
    tensors = {name: tensor.clone() for name, tensor in to.tensors.items()}
    restore(trainer.state, Path("memory"), tensors, rank=0, new_script=True)
    trainer.state.reached.restored = set(to.restored)
    trainer.state.proof.proven = to.proven
    trainer._placement.begin()
    trainer._between_steps()


def _shared(name: str) -> str:
    return f"shared/{name.removeprefix('shared/')}"


@contextmanager
def trial(trainer: "ElasticTrainer", start: Mark) -> Iterator[None]:
    """Steps in this block are tried from the present state, which must be that of `start`, and undone at its end. They are
    not in the step-hash log."""
    hashes = trainer._hashes
    trainer._hashes = _NoHashes()  # type: ignore[assignment]
    try:
        yield
    finally:
        trainer._hashes = hashes
    rewind(trainer, start)
