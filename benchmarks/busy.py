"""Runs a command on a machine that others use, too, to see what it does there.

    python -m benchmarks.busy --take 0.67 -- make test     # a third of each core is left
    python -m benchmarks.busy --beside 1 -- make demo      # one other process wants a core, as much as the command does

What is taken is taken before all else (SCHED_FIFO, for which one must be root), 10 ms at a time.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PERIOD_S = 0.01


def take(core: int, share: float) -> None:
    """Have `share` of a core, whoever else wants it, until the process that started this one ends."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    parent = os.getppid()
    begin = time.monotonic()
    while os.getppid() == parent:
        while time.monotonic() < begin + share * PERIOD_S:
            pass
        begin += PERIOD_S
        time.sleep(max(0.0, begin - time.monotonic()))


def spin() -> None:
    """Want a core, until the process that started this one ends."""
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(100_000):
            pass


@contextmanager
def load(share: float, processes: int) -> Iterator[None]:
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    loads = [context.Process(target=take, args=(core, share)) for core in cores if share]
    loads += [context.Process(target=spin) for _ in range(processes)]
    for one in loads:
        one.start()
    try:
        yield
    finally:
        for one in loads:
            one.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=float, default=0.0, metavar="SHARE", help="of each core, from 0 to 0.9")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="processes that are busy all the time")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD…")
    asked = parser.parse_args()
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not command or not 0 <= asked.take <= 0.9:
        parser.error("give a command, and a share from 0 to 0.9")
    with load(asked.take, asked.beside):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
