"""Starts ranks of an elastic job like launch.py, as forks of one process with its imports: fork.py COUNT SCRIPT…

This saves each rank the seconds of importing torch. Not for jobs to record: esprof enters a process at its start.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from launch import variables

sys.path.insert(0, str(Path(__file__).parents[3]))

import tests.cases.elastic_job  # noqa: F401  imports torch


def main() -> int:
    count, *command = sys.argv[1:]
    ranks = []
    for of_rank in variables(int(count)):
        if (pid := os.fork()) == 0:
            os.environ |= of_rank
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
            return 0
        ranks.append(pid)
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for rank in ranks:
                os.kill(rank, signal.SIGTERM)
    return failed % 256


if __name__ == "__main__":
    sys.exit(main())
