"""Run the job's command as a child process with the same terminal, signals and exit code."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from esprof.core.errors import UsageError
from esprof.recorder.launcher.witness import Witness

_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1}
_STOPS = _FORWARDED - {signal.SIGUSR1}
_SENT_BY_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent to every process in its foreground, including the child."""

_POLL_CHILD_S = 1.0
_WHOLE_GROUP_S = 0.02
"""Time after which a signal to a process group has reached all its processes, s."""
_DUPLICATE_WITHIN_S = 1.0
"""Time in which a repeated signal counts as the same one, s: a sender may address both this process and its process
group."""


def run_child(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: int = 1,
    glance: Callable[[], None] = lambda: None,
    on_usr2: Callable[[], None] = lambda: None,
    on_stop: Callable[[int], None] = lambda number: None,
) -> int:
    """Run `command` and return its exit code; 128 + N if signal N ended it.

    Signals that ask a job to end do not end this process; those sent to it alone, not to its process group, are forwarded
    to the child. `glance` is called about once a second, `on_usr2` at each SIGUSR2, `on_stop` with the number of each signal
    that asks the job to end; none may raise. Raises UsageError if the command cannot be started.
    """
    heard = _FORWARDED | {signal.SIGCHLD, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    witness = None
    try:
        pid = _start(command, environ, stdout, before)
        witness = Witness()
        return _wait(pid, witness, heard, glance, on_usr2, on_stop)
    finally:
        if witness is not None:
            witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(command: Sequence[str], environ: Mapping[str, str], stdout: int, mask: set[int]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, stdout, 1)],
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these two; the child should not.
        )
    except OSError as error:
        reason = "no such command" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise UsageError(f"cannot run {command[0]!r}: {reason}", remedy="Check the name and PATH.") from error


def _wait(
    pid: int,
    witness: Witness,
    heard: set[signal.Signals],
    glance: Callable[[], None],
    on_usr2: Callable[[], None],
    on_stop: Callable[[int], None],
) -> int:
    """Wait for the end of the child and return its exit code. A signal repeated immediately is forwarded once."""
    heard_at: dict[int, float] = {}
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        news = signal.sigtimedwait(heard, _POLL_CHILD_S)
        if news is None:
            glance()
            continue
        if news.si_signo == signal.SIGUSR2:
            on_usr2()
        if news.si_signo in _STOPS:
            on_stop(news.si_signo)
        if news.si_signo in _FORWARDED and news.si_code != _SENT_BY_KERNEL:
            now = time.monotonic()
            is_new = now - heard_at.get(news.si_signo, -inf) > _DUPLICATE_WITHIN_S
            if is_new and not _has_reached(pid, news.si_signo, witness):
                os.kill(pid, news.si_signo)
            heard_at[news.si_signo] = now


def _has_reached(pid: int, number: int, witness: Witness) -> bool:
    """Whether a signal to this process has reached the child as well, as one to their process group does."""
    time.sleep(_WHOLE_GROUP_S)
    return os.getpgid(pid) == os.getpgrp() and witness.saw(number)
