"""Writes a job's checkpoints on demand, and at an interval in the background of training."""

import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from esprof.core.assignment import Est
from esprof.core.errors import EsprofError, InputError, UsageError
from esprof.core.types import Ns
from esprof.elastic.checkpoint import checkpoint
from esprof.elastic.checkpoint.adapting import AdaptiveInterval
from esprof.elastic.checkpoint.snapshot import (
    NamedTensors,
    extra_digests,
    shared_digests,
    wanted,
    with_common_values,
)
from esprof.elastic.options import Checkpoint, Proof
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.runtime.agree import gather_values, reading_together, together
from esprof.elastic.runtime.transport import GroupTransport, Transport
from esprof.elastic.verify.fingerprint import check_same_job, check_same_script, require_alike
from esprof.elastic.verify.rollcall import RollCall
from esprof.elastic.verify.steplog import Fingerprint

_MAX_CHANGES_PRINTED = 5
"""Most changes since a checkpoint that are printed."""

NoteSave = Callable[[Ns, Ns, bool], None]
"""Notes a part of a checkpoint: (start, end, whether it was in the background)."""


class Checkpoints:
    """Writes and reads a job's checkpoints.

    At most one is written at a time. It uses a gloo group of its own, so that its collectives never interleave with
    those of the training. A killed job loses the steps since the last complete checkpoint: at most 2 x `asked.every`.

    All ranks make the same calls. Raises UsageError if the job does not use all processes of torch.distributed.
    """

    def __init__(
        self,
        asked: Checkpoint,
        proof: Proof,
        transport: Transport,
        fingerprint: Fingerprint,
        roll_call: RollCall,
        saved: Callable[[int], None] = lambda _: None,
        note: NoteSave = lambda *_: None,
    ) -> None:
        """`saved` is called with the job's step after each complete checkpoint, in the thread that wrote it. `note` takes
        the times of checkpoints, in either thread."""
        self._saved, self._note = saved, note
        self.folder = Path(asked.folder)
        self.every = asked.every
        """Steps between two checkpoints; 0 if there are none but those that the script writes."""
        self._adaptive = AdaptiveInterval(asked.every, asked.max_overhead) if asked.max_overhead is not None else None
        self.whole_step: int | None = None
        """The job's step at the newest checkpoint known to be complete; None if there is none."""
        self.proof = ProofRecord()
        """What was proven when the checkpoint was written from which the job goes on."""
        self._skips_diverged = proof.on_divergence == "stop"
        self._fingerprint = fingerprint
        self._keep, self._new_script = asked.keep, asked.new_script
        self._group = _own_group(transport)
        self._transport = GroupTransport(self._group, roll_call=roll_call) if self._group is not None else transport
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="esprof-checkpoint")
        self._flight: Future[None] | None = None
        self._newest = 0
        """The job's step at the newest checkpoint, complete or in progress; 0 before the first one."""

    def read_latest(self, ests: Collection[Est]) -> tuple[Path, NamedTensors] | None:
        """(path, tensors for a rank that runs `ests`) of the last valid checkpoint; None if there is no checkpoint.

        Rank 0 warns of later checkpoints that any rank found damaged. On all ranks, raises InputError if all are
        damaged, and MismatchError if one belongs to another job.
        """
        with together(self._transport):
            found = checkpoint.in_folder(self.folder) if self._transport.rank == 0 else []
        damaged: list[InputError] = []
        for name in gather_values(self._transport, [path.name for path in reversed(found)])[0]:
            try:
                tensors = self._read(self.folder / name, ests)
            except InputError as error:
                damaged.append(error)
                continue
            if self._transport.rank == 0:
                _warn_of(damaged, name)
            return self.folder / name, tensors
        if damaged:
            raise damaged[0]
        return None

    def _read(self, path: Path, ests: Collection[Est]) -> NamedTensors:
        """The tensors of a checkpoint for a rank that runs `ests`. If it is damaged, all ranks raise the same InputError."""
        with reading_together(self._transport):
            manifest = checkpoint.read_manifest(path)
            if manifest.diverged is not None and self._skips_diverged:
                raise InputError(
                    f"is not proven: the proof in step {manifest.diverged} found other bits",
                    path=path,
                    remedy="Repair the script, and start in another folder; or pass Proof(on_divergence='warn').",
                )
            check_same_job(manifest.fingerprint, self._fingerprint, path)
            changes = check_same_script(manifest.fingerprint, self._fingerprint, path, new_script=self._new_script)
            checkpoint.verify(path, manifest, self._transport.rank, self._transport.world)
        with reading_together(self._transport):
            tensors = checkpoint.read(path, lambda tensor: wanted(tensor, ests))
        self._newest = self.whole_step = manifest.step
        self.proof = ProofRecord(manifest.proven, manifest.diverged)
        self.tell(path, changes)
        return tensors

    def tell(self, path: Path, changes: Sequence[str]) -> None:
        """Print what has changed since a checkpoint was saved, a sentence each, if this is rank 0."""
        if changes and self._transport.rank == 0:
            left = len(changes) - _MAX_CHANGES_PRINTED
            more = f"; and {left} more" if left > 0 else ""
            sys.stderr.write(
                f"esprof: since {path.name} was saved: {'; '.join(changes[:_MAX_CHANGES_PRINTED])}{more}\n"
            )

    @property
    def is_adaptive(self) -> bool:
        """Whether the interval follows what checkpoints cost."""
        return self._adaptive is not None

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due before `step`. Called once before each step."""
        if self._adaptive is not None:
            self._adaptive.step_begins(time.time_ns())
        return self.every > 0 and step % self.every == 0 and step != self._newest

    def begin(self, step: int, capture: Callable[[], NamedTensors], proof: ProofRecord) -> None:
        """Write the tensors of `capture`, and the `proof`, in the background, once the previous checkpoint is complete."""
        waits_ns = time.time_ns()
        self.finish_or_warn()
        if self._adaptive is not None:
            self.every = self._adaptive.adapt(gather_values(self._transport, self._adaptive.costs()))
        stops_ns = time.time_ns()
        tensors = capture()
        self._newest = step
        stopped_ns = time.time_ns()
        if self._adaptive is not None:
            self._adaptive.begun(stops_ns, stopped_ns)
        self._note(waits_ns, stopped_ns, False)
        self._flight = self._thread.submit(self._write, step, tensors, replace(proof), stops_ns)

    def finish(self) -> None:
        """Wait for a running checkpoint, if there is one. Raises OutputError if it could not be written."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.result()

    def finish_or_warn(self) -> None:
        """Wait for a running checkpoint, if there is one. If it could not be written, rank 0 warns and training
        continues."""
        try:
            self.finish()
        except EsprofError as error:
            if self._transport.rank == 0:
                warnings.warn(f"no checkpoint was written: {error}", stacklevel=4)

    def close(self) -> None:
        """End the thread. No checkpoint may be running."""
        self._thread.shutdown()

    def _write(self, step: int, tensors: NamedTensors, proof: ProofRecord, since_ns: Ns) -> None:
        tensors = with_common_values(tensors, self._transport)
        # What one rank alone has changed would be mixed into the state of the others, each of which writes a part.
        alike = extra_digests(tensors) | (shared_digests(tensors) if self._fingerprint.is_uniform else {})
        require_alike(self._transport, f"before step {step}", alike, _SAME_STATE_REMEDY)
        checkpoint.write(self.folder, step, tensors, self._fingerprint, self._transport, self._group, self._keep, proof)
        self.whole_step = step
        written_ns = time.time_ns()
        if self._adaptive is not None:
            self._adaptive.written(written_ns)
        self._note(since_ns, written_ns, True)
        self._saved(step)


_SAME_STATE_REMEDY = (
    "Let the script do the same to its state on all ranks, and modules change theirs in no forward pass."
)


def _warn_of(damaged: Iterable[InputError], name: str) -> None:
    for error in damaged:
        found = InputError(error.reason, path=error.path)
        warnings.warn(f"{found}: the job skips this checkpoint and resumes from {name}", stacklevel=6)


def _own_group(transport: Transport) -> dist.ProcessGroup | None:
    """A separate group of all ranks; None for a job of one process."""
    if transport.world == 1:
        return None
    if not dist.is_initialized() or dist.get_world_size() != transport.world:
        raise UsageError("checkpoints need every process of torch.distributed to be a rank of the job")
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group
