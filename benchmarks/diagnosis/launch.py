"""Starts RANKS workers of a script on this machine, with the variables that `torchrun` would set.

    python -m benchmarks.diagnosis.launch RANKS SCRIPT [ARGUMENTS…]

Importing PyTorch for an agent beside the workers, as `torchrun` does, would take longer than many of the jobs.
"""

import os
import socket
import subprocess
import sys

from benchmarks.testbed.job import Job


def main() -> int:
    """Returns the exit code of the first rank that failed."""
    ranks, *argv = sys.argv[1:]
    shared = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    job = Job(
        [
            subprocess.Popen([sys.executable, *argv], env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank})
            for rank in map(str, range(int(ranks)))
        ]
    )
    return next((abs(code) for code in job.wait() if code), 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main())
