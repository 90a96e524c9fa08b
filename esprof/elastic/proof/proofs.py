"""The proofs of a running job: what runs again in a step, and what becomes of a divergence."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError
from esprof.elastic.checkpoint.job_checkpoints import JobCheckpoints
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.proof.reruns import EveryTurn, OneTurn, Reruns
from esprof.elastic.proof.schedule import ProofSchedule
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.run.logs import JobEvent


@dataclass
class Proofs:
    """Makes the proofs of a job. All ranks make the same calls."""

    schedule: ProofSchedule
    on_divergence: Literal["stop", "warn"]
    state: TrainingState
    transport: Transport
    record: Callable[[JobEvent], None]
    """Takes events of the job."""
    saving: JobCheckpoints
    _noted: int | None = None
    """The last proven step in the history."""

    def begin(self, step: int, assignment: Assignment) -> Reruns | None:
        """What runs again in this step; None if it is no proof, or if the job goes on with bits that have diverged."""
        if self._found.diverged is not None:
            return None
        if self.schedule.is_whole(step):
            return EveryTurn(step, self.state, self.transport, self.schedule.across_ranks, self.doubts)
        turn = self.schedule.turn(step, assignment)
        return OneTurn(step, turn, self.state, self.transport) if turn is not None else None

    def end(self, step: int, reruns: Reruns, numbers: Sequence[float]) -> None:
        """End a proof whose added `numbers` are known. Raises UsageError on all ranks if bits have diverged."""
        with self.doubts(step):
            reruns.judge(numbers)
        self._found.passed(step)

    def note(self, step: int) -> None:
        """Record, before this step, up to which step bits are proven, if that is new."""
        proven = self._found.proven
        if proven != self._noted:
            self.record(JobEvent(what="proven", step=step, proven=proven))
            self._noted = proven

    @contextmanager
    def doubts(self, step: int) -> Iterator[None]:
        """A check of a step, which raises the same kind of error on all ranks: it stops the job, or is a warning."""
        try:
            yield
        except EsprofError as error:
            complete = self._completed(error)
            if self._found.diverged is None:
                self.saving.mark_diverged(step)
                self.record(JobEvent(what="diverged", step=step, proven=self._found.proven, reason=complete.reason))
            if self.on_divergence == "stop":
                raise complete from error
            self._found.failed(step)
            if self.transport.rank == 0:
                warnings.warn(str(complete), stacklevel=2)

    @property
    def _found(self) -> ProofRecord:
        return self.state.proof

    def _completed(self, error: EsprofError) -> EsprofError:
        """The error, with what is proven and where to go on from."""
        reason = f"{error.reason}; the first step that is not proven is {self._found.first_unproven}"
        saved = self.saving.proven_checkpoint()
        return_to = f" The last checkpoint that is proven is {saved}." if saved is not None else ""
        return type(error)(reason, path=error.path, remedy=f"{error.remedy or ''}{return_to}".strip() or None)
