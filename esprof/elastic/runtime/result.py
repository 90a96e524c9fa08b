"""The result of one global step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepResult:
    """One global step: what all ESTs did together."""

    step: int
    epoch: int
    losses: tuple[float, ...]
    """Mean loss of each EST over its samples, NaN for an EST that had none; the same on every rank."""
    samples: tuple[int, ...]
    """Number of samples of each EST."""
    skipped: bool
    """Whether the fp16 scaler found an infinite gradient and the parameters stayed as they were."""

    @property
    def loss(self) -> float:
        """Mean loss of the ESTs that had samples, added in the order of their numbers."""
        known = [loss for loss, count in zip(self.losses, self.samples, strict=True) if count]
        return sum(known) / len(known)
