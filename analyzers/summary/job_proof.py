"""Up to which step the bits of an elastic job are proven, by its history."""

from collections.abc import Sequence

import msgspec

from esprof.run.logs import JobEvent


class JobProof(msgspec.Struct, frozen=True):
    """What the proofs of a job have found."""

    proven: int | None
    """The last step whose bits are proven; None if none is."""
    diverged: int | None
    """The step whose proof found other bits; None if there is none, or the job went on from a step before it."""

    @classmethod
    def of_history(cls, history: Sequence[JobEvent]) -> "JobProof | None":
        """By the events of a job, the oldest first; None if they say nothing of proofs."""
        proven = diverged = None
        for event in history:
            proven = event.proven if event.proven is not None else proven
            if event.what == "diverged":
                diverged = event.step
            elif diverged is not None and proven is not None and proven >= diverged:
                diverged = None
        return None if proven is None and diverged is None else cls(proven, diverged)
