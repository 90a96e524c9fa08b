"""Commands that may take so long and no longer, with all that they start."""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
"""The folder from which `benchmarks` and `esprof` are imported."""

MARK = "ESPROF_BENCHMARK"
"""The variable by which a command's processes are known: torchrun gives its ranks sessions of their own."""

ON_THIS_MACHINE = {"GLOO_SOCKET_IFNAME": "lo", "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
"""Environment in which gloo and torchrun ask nobody for this machine's name: it may have none that leads anywhere."""


def run(command: Sequence[str], limit_s: float, log: Path, on_line: Callable[[str], None]) -> str | None:
    """Run a command, `on_line` getting each line of its output and `log` its errors. Returns how it failed, or None.

    When this returns, no process is left of it.
    """
    mark, late = uuid.uuid4().hex, threading.Event()
    environment = os.environ | ON_THIS_MACHINE | {MARK: mark}
    timer = threading.Timer(limit_s, lambda: (late.set(), end(mark)))
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=HOME)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                on_line(line)
            code = process.wait()
        finally:
            timer.cancel()
            end(mark)
            process.wait()
    if late.is_set():
        return f"was not done within {limit_s:.0f} s"
    return f"ended with {code}" if code else None


def end(mark: str) -> None:
    """Kill every process whose environment bears this mark."""
    while found := list(_marked(mark)):  # One that is just being started is found the next time.
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> Iterator[int]:
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # Gone meanwhile, or another user's.
            if folder.name.isdigit() and entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
