"""Simulate a scheduler for `train.py` on this machine: start it, preempt it, and start it again on other processes.

python examples/preemption/scheduler.py --processes 2 3 1 --folder checkpoints

gives it two processes, then three, then one, as long as it ends with 75. From its first step on the job has `--slice`
seconds; then all processes get SIGTERM, and SIGKILL `--grace` seconds later. The last processes stay until the job is done.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")
LEFT = 75


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 3, 1])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--slice", type=float, default=1.0)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.1)
    options = parser.parse_args()
    command = [str(TRAIN), f"--folder={options.folder}", f"--within={options.grace * 0.8}", f"--pause={options.pause}"]
    code = LEFT
    for index, count in enumerate(options.processes):
        print(f"on {count} processes", flush=True)
        ranks = start(count, command)
        if index < len(options.processes) - 1:
            preempt(ranks, options.slice, options.grace)
        else:
            sys.stdout.writelines(ranks[0].stdout or ())
        code = max(rank.wait() % 256 for rank in ranks)
        if code != LEFT:
            break
    return code


def start(count: int, command: list[str]) -> list["subprocess.Popen[str]"]:
    """Start the ranks of a job. The output of rank 0 is a pipe."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
            start_new_session=True,
        )
        for rank in range(count)
    ]


def preempt(ranks: list["subprocess.Popen[str]"], slice_s: float, grace_s: float) -> None:
    """Let the job run for its slice, and take its processes away."""
    assert ranks[0].stdout is not None
    sys.stdout.write(ranks[0].stdout.readline())
    time.sleep(slice_s)
    send(ranks, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
        time.sleep(0.05)
    send(ranks, signal.SIGKILL)
    sys.stdout.writelines(ranks[0].stdout)
    sys.stdout.flush()


def send(ranks: list["subprocess.Popen[str]"], number: signal.Signals) -> None:
    """Send a signal to all processes of the job, including those of its data loaders."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, number)


if __name__ == "__main__":
    sys.exit(main())
