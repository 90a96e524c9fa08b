"""Runs the job's command as a child: same terminal, same signals, same exit code."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from esprof.errors import UsageError

_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SENT_BY_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent: to every process in its foreground, the child among them."""


def run_child(command: Sequence[str], environ: Mapping[str, str], *, stdout: int = 1) -> int:
    """Run `command` to its end and return its exit code, 128 + N where signal N ended it.

    Meanwhile SIGINT, SIGTERM and SIGHUP do not end this process: they are the child's to answer, and are passed on once
    where only this process got them. Raises UsageError where the command cannot be started.
    """
    heard = _FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    try:
        pid = _start(command, environ, stdout, before)
        return _wait(pid, heard)
    finally:
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
        raise UsageError(f"cannot run {command[0]!r}: {reason}") from error


def _wait(pid: int, heard: set[signal.Signals]) -> int:
    """Wait for the child to end. A signal is forwarded once: a second one may have reached it by its process group."""
    unheard = set(_FORWARDED)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        news = signal.sigwaitinfo(heard)
        if news.si_signo in unheard and news.si_code != _SENT_BY_KERNEL:
            unheard.discard(signal.Signals(news.si_signo))
            os.kill(pid, news.si_signo)
