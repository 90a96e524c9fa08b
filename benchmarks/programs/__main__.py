"""Training programs on one process and on two: equal bits, an error that names the cause, or other bits without a word.

    python -m benchmarks.programs [--only counter average …]

Half of the programs are right. The others do something in the midst of the training that makes bits depend on the rank,
the process or the number of processes unless it is moved or noticed. Each trains 120 steps with proofs at their default
period. Prints a line of JSON for each program: the step in which it was stopped, or the number of its steps; then a table.
"""

import argparse
import hashlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal, get_args

import torch
import torch.distributed as dist

from benchmarks.figures import show, table
from benchmarks.programs import places, remembering, usual  # noqa: F401 They register the programs.
from benchmarks.programs.training import EPOCHS, PROGRAMS
from esprof.core.errors import EsprofError

Outcome = Literal["equal", "refused", "stopped by a proof", "reported", "silent", "failed"]
_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_REPORTS = re.compile("esprof: (making a sample changes .*|.* reads the number of processes .*)")
"""Matches messages of the runtime that name a number on which the bits may depend."""
_LIMIT_S = 300
_FORKS = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ran:
    """What became of a program on one rank."""

    steps: int = 0
    bits: str = ""
    """Of the parameters and buffers at the end; empty if it did not come there."""
    refused: str = ""
    """The error by which the runtime has stopped it."""
    failed: str = ""
    """Any other error."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    asked = parser.parse_args().only
    torch.set_num_threads(1)
    counts: Counter[tuple[bool, Outcome]] = Counter()
    for name, program in PROGRAMS.items():
        if any(part in name for part in asked):
            found, steps, why = outcome(name)
            counts[program.is_right, found] += 1
            show(name, steps, "steps", {"is_right": program.is_right, "outcome": found, "why": why})
    rows = [
        [written, *(str(counts[is_right, found]) for found in _OUTCOMES)]
        for written, is_right in (("right", True), ("going wrong", False))
    ]
    sys.stderr.write(table(["programs", *(f">{found}" for found in _OUTCOMES)], rows) + "\n")


def outcome(name: str) -> tuple[Outcome, int, str]:
    """What a program comes to on one process and on two, the number of its steps, and why it ended or what was reported."""
    ranks, told = [], ""
    for world in (1, 2):
        found, said = _on_processes(name, world)
        ranks += found
        told = told or next(iter(_REPORTS.findall(said)), "")
    steps = min(ran.steps for ran in ranks)
    for ran in ranks:
        if ran.failed:
            return "failed", steps, ran.failed
    for ran in ranks:
        if ran.refused:
            is_proof = "the first step that is not proven" in ran.refused
            return "stopped by a proof" if is_proof else "refused", steps, ran.refused
    if len({ran.bits for ran in ranks}) == 1:
        return "equal", steps, told
    return "reported" if told else "silent", steps, told


def _on_processes(name: str, world: int) -> tuple[list[Ran], str]:
    """(what each rank comes to, what all have written)."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes, ends = [], []
    with tempfile.TemporaryFile("w+") as log:
        for rank in range(world):
            mine, its = _FORKS.Pipe(duplex=False)
            process = _FORKS.Process(target=_rank, args=(name, rank, world, store.port, its, log.fileno()))
            process.start()
            its.close()
            processes.append(process)
            ends.append(mine)
        deadline = time.monotonic() + _LIMIT_S
        found = [_received(end, deadline) for end in ends]
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
        log.seek(0)
        return found, log.read()


def _received(end: Connection, deadline: float) -> Ran:
    if not end.poll(max(0.0, deadline - time.monotonic())):
        return Ran(failed=f"not ended after {_LIMIT_S} s")
    try:
        found: Ran = end.recv()
    except EOFError:
        return Ran(failed="the process ended without a word")
    return found


def _rank(name: str, rank: int, world: int, port: int, end: Connection, log: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world}"}
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    end.send(_trained(name))
    time.sleep(0.5)  # Gloo may abort a process that ends right after its last collective.


def _trained(name: str) -> Ran:
    torch.manual_seed(0)
    training = PROGRAMS[name].make()
    trainer = training.trainer()
    try:
        for result in trainer.fit(EPOCHS):
            if training.between(trainer, result.step):
                break
        trainer.flush()
    except EsprofError as error:
        return Ran(trainer.next_step, refused=str(error))
    except Exception as error:  # noqa: BLE001 The table counts it, whatever it is.
        return Ran(trainer.next_step, failed=f"{type(error).__name__}: {error}")
    training.end()
    state = b"".join(tensor.contiguous().numpy().tobytes() for tensor in training.model.state_dict().values())
    return Ran(trainer.next_step, hashlib.sha256(state).hexdigest()[:16])


if __name__ == "__main__":
    main()
