"""Starts RANKS workers of a script on this machine, with the variables that `torchrun` would set.

    python -m benchmarks.diagnosis.launch [--apart] RANKS SCRIPT [ARGUMENTS…]

Apart, each is the only rank of a job of its own, and only the first is recorded.

Importing PyTorch for an agent beside the workers, as `torchrun` does, would take longer than many of the jobs.
"""

import os
import socket
import subprocess
import sys

from benchmarks.testbed.job import Job
from esprof.recorder.shared.environment import RUN


def main() -> int:
    """Returns the exit code of the first rank that failed."""
    apart = sys.argv[1] == "--apart"
    ranks, *argv = sys.argv[1 + apart :]
    if apart:
        unrecorded = {name: value for name, value in os.environ.items() if name != RUN}
        environments = [
            # A job may choose its core by its local rank.
            (unrecorded if number else os.environ) | _rank(0, 1, _free_port()) | {"LOCAL_RANK": str(number)}
            for number in range(int(ranks))
        ]
    else:
        port = _free_port()
        environments = [os.environ | _rank(rank, int(ranks), port) for rank in range(int(ranks))]
    job = Job([subprocess.Popen([sys.executable, *argv], env=environment) for environment in environments])
    return next((abs(code) for code in job.wait() if code), 0)


def _rank(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables of one rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main())
