"""Checkpoints of a running job, if it has a folder for them."""

import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from esprof.core.assignment import Est
from esprof.core.errors import EsprofError, UsageError
from esprof.elastic.checkpoint import checkpoint
from esprof.elastic.checkpoint.saving import Checkpoints, NoteSave
from esprof.elastic.checkpoint.snapshot import capture, restore
from esprof.elastic.options import Checkpoint, Proof
from esprof.elastic.runtime.agree import together
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.rollcall import RollCall
from esprof.elastic.verify.steplog import Fingerprint
from esprof.run.logs import JobEvent


@dataclass(frozen=True)
class SaveLog:
    """Where checkpoints are noted."""

    record: Callable[[JobEvent], None]
    """Takes events of the job."""
    note: NoteSave


class JobCheckpoints:
    """Saves the state of a job between two steps. All ranks make the same calls."""

    def __init__(
        self,
        asked: Checkpoint | None,
        proof: Proof,
        state: TrainingState,
        ests: Collection[Est],
        transport: Transport,
        fingerprint: Fingerprint,
        roll_call: RollCall,
        log: SaveLog,
    ) -> None:
        """`ests` are those of this rank."""
        self._state, self._rank = state, transport.rank
        self.checkpoints: Checkpoints | None = None
        """None for a job without a folder."""
        if asked is not None:
            self.checkpoints = Checkpoints(
                asked,
                proof,
                transport,
                fingerprint,
                roll_call,
                lambda step: log.record(
                    JobEvent(what="checkpoint", step=step, every=self.adapted_every, proven=state.proof.proven)
                ),
                log.note,
            )
            if (found := self.checkpoints.read_latest(ests)) is not None:
                path, tensors = found
                lenient = asked.new_script or fingerprint.determinism == "hetero-relaxed"
                with together(transport):
                    differences = restore(state, path, tensors, rank=transport.rank, new_script=lenient)
                self.checkpoints.tell(path, differences)
                state.proof = self.checkpoints.proof

    def whole_step(self) -> Callable[[], int | None]:
        """A function that returns the step of the newest complete checkpoint, without a reference to the job's state."""
        checkpoints = self.checkpoints
        return lambda: checkpoints.whole_step if checkpoints is not None else None

    def proven_checkpoint(self) -> Path | None:
        """The newest checkpoint that comes from proven steps alone; None if there is none, or the folder cannot be read."""
        if self.checkpoints is not None:
            with suppress(EsprofError):
                return checkpoint.last_proven(self.checkpoints.folder, self._state.proof)
        return None

    def mark_diverged(self, step: int) -> None:
        """Note in checkpoints that are not proven that the proof in `step` has found other bits; rank 0 warns if that cannot
        be written. All ranks call this."""
        self.finish_or_warn()
        if self.checkpoints is not None and self._rank == 0:
            try:
                checkpoint.mark_diverged(self.checkpoints.folder, self._state.proof, step)
            except EsprofError as error:
                warnings.warn(f"checkpoints that are not proven are not marked: {error}", stacklevel=4)

    @property
    def adapted_every(self) -> int | None:
        """Steps between checkpoints, if that adapts; else None."""
        return self.checkpoints.every if self.checkpoints is not None and self.checkpoints.is_adaptive else None

    @property
    def planned_every(self) -> int | None:
        """Steps between checkpoints; None if a plan cannot change them."""
        return self.checkpoints.every if self.checkpoints is not None and not self.checkpoints.is_adaptive else None

    def set_every(self, every: int) -> None:
        """Write a checkpoint every so many steps from now on."""
        assert self.checkpoints is not None, "ranks object to a plan for a job without checkpoints"
        self.checkpoints.every = every

    def begin_if_due(self) -> None:
        """Start a due checkpoint. Called when a step starts, so that it includes what the script did after the
        previous step, such as an update of an average."""
        if self.checkpoints is not None and self.checkpoints.due(self._state.next_step):
            self._begin(self.checkpoints)

    def save(self) -> None:
        """Save, and return once it is on disk. Raises OutputError on all ranks if it cannot be written, and UsageError
        without a folder."""
        if self.checkpoints is None:
            raise UsageError("the trainer has no checkpoint folder", remedy="Pass checkpoint=Checkpoint(FOLDER).")
        self._begin(self.checkpoints)
        self.checkpoints.finish()

    def save_to_leave(self) -> None:
        """Like `save`, for a job that leaves; without a folder rank 0 warns."""
        if self.checkpoints is not None:
            self.save()
        elif self._rank == 0:
            warnings.warn("the job leaves without a checkpoint: the trainer has no checkpoint folder", stacklevel=4)

    def finish_or_warn(self) -> None:
        """Wait for a running checkpoint, if there is one; rank 0 warns if it could not be written."""
        if self.checkpoints is not None:
            self.checkpoints.finish_or_warn()

    def close(self) -> None:
        """End the thread that writes."""
        if self.checkpoints is not None:
            self.checkpoints.close()

    def _begin(self, checkpoints: Checkpoints) -> None:
        checkpoints.begin(self._state.next_step, lambda: capture(self._state), self._state.proof)
