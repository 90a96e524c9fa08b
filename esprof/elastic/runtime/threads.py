"""How many CPU threads a process computes with: bits depend on it, and torchrun's choice on the number of processes."""

import sys
from contextlib import suppress
from pathlib import Path

import torch

from esprof.core.errors import EsprofError
from esprof.elastic.checkpoint import checkpoint
from esprof.elastic.options import Checkpoint
from esprof.elastic.runtime.agree import tell_all
from esprof.elastic.runtime.transport import Transport

_THREADS_OF_A_NEW_JOB = 1
"""What torchrun gives to each of several processes on a machine; to a single one it leaves all CPUs."""


def set_threads(asked: int | None, saved: Checkpoint | None, transport: Transport) -> None:
    """Let this process compute with `asked` threads, or as the job did that it goes on with; rank 0 says so where that is a
    change. All ranks call this."""
    found = _of_checkpoint(Path(saved.folder)) if saved is not None and transport.rank == 0 else None
    before, now = torch.get_num_threads(), asked or tell_all(transport, found)[0] or _THREADS_OF_A_NEW_JOB
    if now == before:
        return
    torch.set_num_threads(now)
    if transport.rank == 0:
        by_itself = "as in the job's checkpoint" if found else "so that bits do not depend on the number of processes"
        why = "as asked for" if asked else f"{by_itself}; Proof(threads=N) sets another number"
        sys.stderr.write(f"esprof: {now} CPU thread{'s' * (now > 1)} a process, not {before}: {why}\n")


def _of_checkpoint(folder: Path) -> int | None:
    """The threads with which the job in this folder was trained; None where there is none, or none that can be read."""
    with suppress(EsprofError):  # Whoever reads the checkpoints tells what is wrong with them.
        for path in reversed(checkpoint.in_folder(folder)):
            with suppress(EsprofError):
                threads = checkpoint.read_manifest(path).fingerprint.machine.get("threads")
                return threads if isinstance(threads, int) else None
    return None
