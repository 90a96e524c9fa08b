"""Has a process write its stacks when a signal ends it."""

import faulthandler
import os
import signal

from ....run.raw.new_files import NewFile

_noted: tuple[int, str] | None = None
"""The process that has called `note_fatal_signals`, and the file that its stacks go to."""


def note_fatal_signals(path: str) -> None:
    """Have Python's faulthandler write all stacks to `path` when a signal ends the process; the signal still ends it.

    Handlers that the job has set stay, and those that it sets later replace ours. A second call moves the file.
    """
    global _noted
    if _noted is not None and _noted[0] == os.getpid():
        os.rename(_noted[1], path)
        _noted = os.getpid(), path
        return
    file = NewFile(path)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.register(signal.SIGTERM, file=file.number, all_threads=True, chain=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=file.number, all_threads=True)
    os.register_at_fork(after_in_child=lambda: _silence(file))
    _noted = os.getpid(), path


def _silence(file: NewFile) -> None:
    """In a forked child: let its last stacks go nowhere, as they are not the rank's. The handlers stay: they may be the
    job's own by now."""
    if file.is_ours:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.number)
        os.close(nowhere)
