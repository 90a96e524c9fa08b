"""A training process that ends, or has a child end, by a signal, in one of the ways that `WAYS` names."""

import ctypes
import faulthandler
import os
import signal
import sys
import time

import torch


def fault() -> None:
    ctypes.string_at(0)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def answers_terminated() -> None:
    """The job has its own answer, set up only after the recorder."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    terminated()


def child_terminated() -> None:
    pid = os.fork()
    if pid == 0:
        terminated()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def own_faulthandler() -> None:
    faulthandler.enable()
    fault()


def raises() -> None:
    raise ValueError("bad sample")


WAYS = (fault, terminated, answers_terminated, child_terminated, own_faulthandler, raises)


def main() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    next(way for way in WAYS if way.__name__ == sys.argv[1])()


if __name__ == "__main__":
    main()
