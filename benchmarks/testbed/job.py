"""The processes of one training job, a host each."""

import subprocess
import time
from collections.abc import Sequence


class Job:
    """A job that runs on several hosts; `processes` in the order of their ranks."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = tuple(processes)

    def wait(self, timeout: float | None = None) -> list[int]:
        """Wait for the job's end and return the exit code of each rank, -N for one that signal N ended.

        Where a rank fails, the others are killed, as `torchrun` does: they would wait for it. Raises
        subprocess.TimeoutExpired, with all ranks killed, after `timeout` seconds.
        """
        deadline = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while None in (codes := [process.poll() for process in self.processes]):
            if any(codes):
                self.kill()
            elif time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(self.processes[0].args, timeout or 0)
            time.sleep(0.02)
        return [process.wait() for process in self.processes]

    def kill(self) -> None:
        """Kill each rank that still runs, and wait until it is gone."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
