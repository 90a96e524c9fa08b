"""Writes the step-hash log: hashes of the training state after each step."""

import hashlib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from torch import Tensor

from esprof.core.assignment import Assignment
from esprof.core.errors import MismatchError, OutputError
from esprof.core.output import atomic_file
from esprof.elastic.checkpoint.snapshot import NamedTensors, training_tensors
from esprof.elastic.options import Proof
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.runtime.agree import gather_values, together
from esprof.elastic.runtime.result import StepResult
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.content import as_numpy
from esprof.elastic.verify.steplog import Digest, Fingerprint, Header, StepLine, StepLog, different, values_path

_encoder = msgspec.json.Encoder()


class HashLog:
    """The log of the whole job, which rank 0 writes: after a step all ranks hold the same, which their hashes must
    show.

    A job that goes on from a checkpoint keeps the lines of the steps before it and writes the others anew; one that
    starts at step 0 writes a new log in place of an old one. With `values` each distinct content of a tensor is kept
    as a .npy file in the folder `PATH.values`, so that distances can be measured: about as large, for each step, as a
    checkpoint.

    All ranks make the same calls. Raises MismatchError where the lines to keep are another job's, OutputError where the
    file system refuses.
    """

    def __init__(
        self, path: Path, fingerprint: Fingerprint, next_step: int, transport: Transport, *, values: bool = False
    ) -> None:
        self._path = path
        self._transport = transport
        self._values = values and transport.rank == 0
        self._alike = fingerprint.is_uniform
        self._file: BinaryIO | None = None
        if transport.rank == 0:
            with atomic_file(path) as file:
                file.write(_line(Header(fingerprint)))
                file.writelines(map(_line, _retained(path, fingerprint, next_step)))
            self._file = path.open("ab")

    def write(
        self,
        step: int,
        epoch: int,
        losses: tuple[float, ...],
        tensors: NamedTensors,
        *,
        skipped: bool,
        assignment: tuple[tuple[int, ...], ...],
        codec: str,
        proof: ProofRecord,
    ) -> None:
        """Add the line of a step, with the hashes of `tensors` as they are after it, and what is proven.

        Raises MismatchError on all ranks where the hashes differ between ranks that compute alike, OutputError where
        the line cannot be written.
        """
        digests = {name: self._digest(tensor) for name, tensor in tensors.items()}
        whole = hashlib.sha256(msgspec.json.encode(list(digests.items()))).hexdigest()
        self._compare(step, whole, digests)
        if self._file is None:
            return
        line = StepLine(
            step=step,
            epoch=epoch,
            losses=tuple(loss.hex() for loss in losses),
            skipped=skipped,
            sha256=whole,
            assignment=assignment,
            codec=codec,
            tensors=digests,
            proven=proof.proven,
            diverged=proof.diverged,
        )
        try:
            self._file.write(_line(line))
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", path=self._path) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _compare(self, step: int, whole: str, digests: dict[str, Digest]) -> None:
        if not self._alike or len(set(gather_values(self._transport, whole))) == 1:
            return  # Ranks that compute on different machines drift apart, and no level promises otherwise.
        ranks = gather_values(self._transport, {name: digest.sha256 for name, digest in digests.items()})
        for rank, other in enumerate(ranks):
            found = different("", ranks[0], other)
            if found:
                raise MismatchError(
                    f"after step {step} rank {rank} differs from rank 0, first in {found.field}",
                    remedy="Make the same changes to model and optimizer on every rank.",
                )

    def _digest(self, tensor: Tensor) -> Digest:
        array = as_numpy(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest = hashlib.sha256(f"{dtype} {list(tensor.shape)} ".encode())
        digest.update(array.data)
        found = Digest(dtype, tuple(tensor.shape), digest.hexdigest())
        if self._values and not (path := values_path(self._path, found.sha256)).exists():
            with atomic_file(path) as file:
                np.save(file, array, allow_pickle=False)
        return found


class StepHashes:
    """Logs the steps of a running job, where `Proof` asks for that. All ranks make the same calls."""

    def __init__(self, proof: Proof, fingerprint: Fingerprint, state: TrainingState, transport: Transport) -> None:
        """Raises as HashLog does, on all ranks."""
        self._state = state
        self._log: HashLog | None = None
        if proof.hash_log:
            path, values = Path(proof.hash_log), proof.hash_log_values
            with together(transport):
                self._log = HashLog(path, fingerprint, state.next_step, transport, values=values)

    def write(self, result: StepResult, assignment: Assignment) -> None:
        """Add the line of a step that has just ended."""
        if self._log is not None:
            self._log.write(
                result.step,
                result.epoch,
                result.losses,
                training_tensors(self._state),
                skipped=result.skipped,
                assignment=assignment.ests,
                codec=self._state.codec_spec(result.step),
                proof=self._state.proof,
            )

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _retained(path: Path, fingerprint: Fingerprint, next_step: int) -> Iterator[StepLine]:
    if next_step == 0 or not path.exists():
        return
    log = StepLog.open(path)
    found = log.fingerprint.difference(fingerprint)
    if found:
        raise MismatchError(
            f"belongs to another job: {found.field} is {found.a} there and {found.b} here",
            path=path,
            remedy="Choose another hash_log for this job.",
        )
    yield from takewhile(lambda line: line.step < next_step, log.steps())


def _line(entry: Header | StepLine) -> bytes:
    return _encoder.encode(entry) + b"\n"
