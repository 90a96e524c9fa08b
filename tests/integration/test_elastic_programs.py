"""Training scripts of all kinds on real processes: their bits do not depend on the assignment, or the runtime says why."""

import io
import multiprocessing
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist

from esprof.core.errors import EsprofError
from esprof.elastic import Assignment
from tests.cases.elastic import History, state_hash
from tests.cases.marks import soak
from tests.cases.programs import PROGRAMS

pytestmark = pytest.mark.integration

STEPS = 6
LIMIT_S = 60
"""After that long a process that has not ended counts as one that hangs."""
EVEN, UNEVEN = [[0, 1], [2, 3]], [[3], [0, 1, 2]]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.cases.elastic"])
STATIC: Sequence[History] = [{0: [[0, 1, 2, 3]]}]
ELASTIC: Sequence[History] = [{0: EVEN}, {0: UNEVEN}, {0: EVEN, 3: UNEVEN}]


@dataclass(frozen=True)
class Ran:
    """What became of the runs that one process made in turn."""

    bits: list[list[str]]
    """Those of each whole run, after each step."""
    refused: str = ""
    """The error by which the runtime has refused to go on."""
    crashed: str = ""
    """The traceback of any other error."""
    reported: str = ""
    """What the runtime has written of reads of the number of processes."""


def test_programs_of_long_runs_have_a_similar_one_in_every_run():
    for name, program in PROGRAMS.items():
        if program.like:
            other = PROGRAMS[program.like]
            assert (other.expected, other.like) == (program.expected, None), name


@pytest.mark.parametrize("name", [soak(name) if program.like else name for name, program in PROGRAMS.items()])
def test_a_program_has_equal_bits_everywhere_or_a_reported_reason(name, record_property):
    found, why = outcome(name)
    record_property("outcome", f"{found}: {why}")
    expected = PROGRAMS[name].expected
    assert found in (("equal", "refused") if expected == "either" else (expected,)), f"{name} is {found}: {why}"


def outcome(name: str) -> tuple[str, str]:
    """What a program comes to, and why: "equal", "refused", "reported", or one of the faults "silent", "hang" and "crash".

    "refused" are those alone that no two runs have brought to an end with unlike bits; "equal" only without a report.
    """
    ran = _on_processes(name)
    if None in ran:
        return "hang", f"after {LIMIT_S} s processes {[at for at, one in enumerate(ran) if one is None]} still ran"
    static, *ranks = ran
    reported = next((one.reported for one in ran if one.reported), "")
    for run in zip(*(rank.bits for rank in ranks), strict=False):
        for rank, bits in enumerate(run):
            reference = static.bits[0] if static.bits else run[0]
            if bits != reference:
                step = [mine == its for mine, its in zip(bits, reference, strict=True)].index(False)
                return (
                    ("reported", reported) if reported else ("silent", f"rank {rank} has other bits after step {step}")
                )
    for kind in ("refused", "crashed"):
        texts = [text for text in (getattr(one, kind) for one in ran) if text]
        if texts:
            return {"refused": "refused", "crashed": "crash"}[kind], texts[0]
    return ("reported", reported) if reported else ("equal", "")


def _on_processes(name: str) -> list[Ran | None]:
    """Of the process that runs all ESTs, then of ranks 0 and 1 of two that share them; None for one that did not end."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    places = [(0, 1, stores[0].port, STATIC), (0, 2, stores[1].port, ELASTIC), (1, 2, stores[1].port, ELASTIC)]
    processes, ends = [], []
    for place in places:
        mine, its = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=_process, args=(name, *place, its))
        process.start()
        its.close()
        processes.append(process)
        ends.append(mine)
    try:
        deadline = time.monotonic() + LIMIT_S
        ran = [_received(mine, deadline) for mine in ends]
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [one if process.exitcode is not None else None for one, process in zip(ran, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(end: Connection, deadline: float) -> Ran | None:
    if not end.poll(max(0.0, deadline - time.monotonic())):
        return None
    try:
        return end.recv()
    except EOFError:
        return Ran([], crashed="the process ended without a word")


def _process(name: str, rank: int, world: int, port: int, histories: Sequence[History], end: Connection) -> None:
    multiprocessing.set_start_method(
        "fork", force=True
    )  # Loaders' workers start as in a script that nobody has forked.
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    ran, written = Ran([]), io.StringIO()
    try:
        with redirect_stderr(written):
            for history in histories:
                ran.bits.append(_bits(name, history))
    except EsprofError as error:
        ran = replace(ran, refused=str(error))
    except BaseException:  # noqa: BLE001 The test shows it, whatever it is.
        ran = replace(ran, crashed=traceback.format_exc())
    reported = re.findall(r"esprof: (.* reads the number of processes .*)", written.getvalue())
    end.send(replace(ran, reported="\n".join(reported)))
    time.sleep(0.1)  # Gloo may abort a process that ends right after its last transfer.


def _bits(name: str, history: History) -> list[str]:
    """After every step of a run on this rank, the losses of its ESTs among them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    script = PROGRAMS[name].make()
    trainer = script.trainer(Assignment.of(history[0]))
    bits = []
    for step in range(STEPS):
        if step and step in history:
            trainer.assign(Assignment.of(history[step]))
        losses = trainer.step().losses
        bits.append(
            state_hash(trainer.state.model, trainer.state.optimizers[0]) + "".join(loss.hex() for loss in losses)
        )
        script.between(trainer, step)
    trainer.close()
    return bits
