"""The workers of a job while their number stays the same."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from esprof.core.errors import UsageError
from esprof.elastic.launch.bootstrap import READY
from esprof.elastic.launch.messages import VARIABLE, Launch, is_ready
from esprof.run.files import ready_path
from esprof.verbs import module_line

_MAX_WAIT_FOR_END_S = 10.0
"""Time for workers that have left to exit, s."""


@dataclass(frozen=True)
class WorkerSlot:
    """Where a worker runs: on this machine, or inside a command such as `ip netns exec NAME`. The command must `exec`
    the worker, so that it gets its signals, and must have access to the launcher's folder."""

    command: tuple[str, ...] = ()
    """Prefix of the worker's command."""
    address: str = "127.0.0.1"
    """Address at which other workers reach it."""
    python: str = sys.executable


class Generation:
    """Workers that are started and wait to run the script; a worker's rank is the index of its slot."""

    def __init__(
        self, number: int, slots: Sequence[WorkerSlot], script: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        """Raises UsageError if the command of a slot cannot be run."""
        self.number, self._slots, self._folder = number, slots, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.has_started = False
        for rank, slot in enumerate(slots):
            ready = ready_path(folder, number, rank)
            ready.unlink(missing_ok=True)
            # By `env`: the command of a slot may not pass variables on.
            variables = [f"{name}={value}" for name, value in {**env, READY: str(ready)}.items()]
            worker = module_line("esprof.elastic.launch.bootstrap", *script, python=slot.python)
            try:
                self._processes.append(
                    # A new session: Ctrl-C reaches only the launcher, which lets workers save.
                    subprocess.Popen(
                        [*slot.command, "env", *variables, *worker], stdin=subprocess.PIPE, start_new_session=True
                    )
                )
            except OSError as error:
                self.kill()
                raise UsageError(f"cannot run {(*slot.command, 'env')[0]!r}: {error.strerror}") from error

    @property
    def world(self) -> int:
        return len(self._slots)

    @property
    def is_ready(self) -> bool:
        """Whether all workers are ready to run the script."""
        return all(is_ready(self._folder, self.number, rank) for rank in range(self.world))

    def begin(self, launch: Launch) -> None:
        """Start the script in all workers."""
        self.has_started = True
        hosts = [slot.command for slot in self._slots]
        port = _free_port()
        for rank, process in enumerate(self._processes):
            alike = [one for one, host in enumerate(hosts) if host == hosts[rank]]
            request = {
                VARIABLE: msgspec.json.encode(launch).decode(),
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "LOCAL_RANK": str(alike.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(alike)),
                "MASTER_ADDR": self._slots[0].address,
                "MASTER_PORT": str(port),
            }
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # It is dead, which `codes` shows.
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.close()

    def codes(self) -> list[int | None]:
        """The exit code of each worker, negative for a signal; None while it runs."""
        return [process.poll() for process in self._processes]

    def send(self, number: signal.Signals) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """Kill all workers and their child processes."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Each is the first of a session.
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        for rank in range(self.world):
            ready_path(self._folder, self.number, rank).unlink(missing_ok=True)

    def end(self) -> None:
        """Wait for workers that have left, then kill the rest."""
        until = time.monotonic() + _MAX_WAIT_FOR_END_S
        while None in self.codes() and time.monotonic() < until:
            time.sleep(0.02)
        self.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Variables of the workers: `extra`, and one thread for numerical libraries, as torchrun sets it."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **extra}
