"""When a job's checkpoints are written: on demand, and every so many steps while training goes on."""

import warnings
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch.distributed as dist

from esprof.core.assignment import Est
from esprof.core.errors import EsprofError, InputError, UsageError
from esprof.elastic.checkpoint import checkpoint
from esprof.elastic.checkpoint.snapshot import NamedTensors, extra_digests, wanted
from esprof.elastic.options import Checkpoint
from esprof.elastic.runtime.agree import gather_values, reading_together, together
from esprof.elastic.runtime.transport import GroupTransport, Transport
from esprof.elastic.verify.fingerprint import check_same_job, require_alike
from esprof.elastic.verify.rollcall import RollCall
from esprof.elastic.verify.steplog import Fingerprint


class Checkpoints:
    """Writes and reads a job's checkpoints.

    At most one is under way. Its collectives have a gloo group of their own, so that they never come between those of the
    training. After a kill a job has lost at most the steps since the last one that was whole: at most 2 x `asked.every`.

    All ranks make the same calls. Raises UsageError where the job's processes are not those of torch.distributed.
    """

    def __init__(
        self,
        asked: Checkpoint,
        transport: Transport,
        fingerprint: Fingerprint,
        roll_call: RollCall,
        saved: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`saved` is told the job's step at each checkpoint that is whole, by the thread that has written it."""
        self._saved = saved
        self.folder = Path(asked.folder)
        self.every = asked.every
        self.whole_step: int | None = None
        """The job's step at the newest checkpoint that is known to be whole; None where there is none."""
        self._fingerprint = fingerprint
        self._keep = asked.keep
        self._group = _own_group(transport)
        self._transport = GroupTransport(self._group, roll_call=roll_call) if self._group is not None else transport
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="esprof-checkpoint")
        self._flight: Future[None] | None = None
        self._newest = 0
        """The job's step at the newest checkpoint, whole or under way; 0 before the first one."""

    def read_latest(self, ests: Collection[Est]) -> tuple[Path, NamedTensors] | None:
        """The last checkpoint that is whole, and what it holds for a rank that runs `ests`; None where there is none yet.

        Rank 0 warns of a later one that is not what was written, whichever rank has seen it. Raises InputError where none is
        whole, MismatchError where one is another job's, on all ranks.
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
        """What a checkpoint holds for a rank that runs `ests`. Where it is damaged, all raise the same InputError."""
        with reading_together(self._transport):
            manifest = checkpoint.read_manifest(path)
            check_same_job(manifest.fingerprint, self._fingerprint, path)
            checkpoint.verify(path, manifest, self._transport.rank, self._transport.world)
        with reading_together(self._transport):
            tensors = checkpoint.read(path, lambda tensor: wanted(tensor, ests))
        self._newest = self.whole_step = manifest.step
        return tensors

    def due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0 and step != self._newest

    def begin(self, step: int, capture: Callable[[], NamedTensors]) -> None:
        """Write what `capture` gives in the background, once the checkpoint before is done."""
        self.finish_or_warn()
        tensors = capture()
        self._newest = step
        self._flight = self._thread.submit(self._write, step, tensors)

    def finish(self) -> None:
        """Wait for the checkpoint under way, if there is one. Raises OutputError where it could not be written."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.result()

    def finish_or_warn(self) -> None:
        """Wait for the checkpoint under way, if there is one. Where it could not be written, rank 0 warns and training goes
        on."""
        try:
            self.finish()
        except EsprofError as error:
            if self._transport.rank == 0:
                warnings.warn(f"no checkpoint was written: {error}", stacklevel=4)

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        self._thread.shutdown()

    def _write(self, step: int, tensors: NamedTensors) -> None:
        require_alike(self._transport, f"before step {step}", extra_digests(tensors), _SAME_STATE_REMEDY)
        checkpoint.write(self.folder, step, tensors, self._fingerprint, self._transport, self._group, self._keep)
        self.whole_step = step
        self._saved(step)


_SAME_STATE_REMEDY = (
    "Let the script do the same to its state on all ranks, and modules change theirs in no forward pass."
)


def _warn_of(damaged: Iterable[InputError], name: str) -> None:
    for error in damaged:
        found = InputError(error.reason, path=error.path)
        warnings.warn(f"{found}: the job skips this checkpoint and resumes from {name}", stacklevel=6)


def _own_group(transport: Transport) -> dist.ProcessGroup | None:
    """A group of all ranks that nothing else uses; None for a job of one process."""
    if transport.world == 1:
        return None
    if not dist.is_initialized() or dist.get_world_size() != transport.world:
        raise UsageError("checkpoints need every process of torch.distributed to be a rank of the job")
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group
