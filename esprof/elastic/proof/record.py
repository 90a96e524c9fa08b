"""Up to which step the bits of a job are proven."""

from dataclasses import dataclass, field


@dataclass
class ProofRecord:
    """What the proofs of a job have found so far; the same on all ranks."""

    proven: int | None = None
    """The last step whose proof found the same bits; None before the first."""
    diverged: int | None = None
    """The first step whose proof found other bits, in a job that went on; from then on nothing is proven."""
    unsteady: set[str] = field(default_factory=set)
    """Names of results that no proof in this process compares: values that were others when the same EST step ran again."""

    def passed(self, step: int) -> None:
        """Note that the proof in `step` has found the same bits."""
        if self.diverged is None:
            self.proven = step

    def failed(self, step: int) -> None:
        """Note that the proof in `step` has found other bits, and the job goes on."""
        if self.diverged is None:
            self.diverged = step

    @property
    def first_unproven(self) -> int:
        """The first step that is not proven."""
        return 0 if self.proven is None else self.proven + 1
