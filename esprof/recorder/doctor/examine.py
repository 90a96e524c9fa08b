"""`esprof doctor` as a function: every trial, those of torch in processes of their own while the others run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from esprof.recorder.doctor import host, network
from esprof.recorder.doctor.health import CLUSTER, Health, HealthCheck, fail
from esprof.recorder.doctor.torch_trial import RANKS
from esprof.verbs import module_line

MAX_WAIT_S = 15.0
"""Longest wait for the trials of torch, s, from their start on."""

_TRIAL = "esprof.recorder.doctor.torch_trial"
_LAST = "gloo"
"""Name of the last check of torch."""


def examine(folder: Path, *, max_wait_s: float = MAX_WAIT_S) -> Health:
    """Examine this installation, and `folder` as the place for Runs."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="esprof-doctor-") as meeting, _trials(Path(meeting)) as processes:
        checks = list(_of_host(folder))
        checks += _of_torch(processes, began + max_wait_s)
    return Health(
        sound=all(check.state != "fail" for check in checks),
        checks=tuple(checks),
        cluster=CLUSTER,
        took_s=round(time.perf_counter() - began, 2),
    )


def _of_host(folder: Path) -> Iterator[HealthCheck]:
    yield host.check_python()
    yield host.check_libraries()
    yield from host.check_folder(folder)
    yield host.check_compiled()
    yield from host.check_kernel_files()
    yield host.check_clock()
    yield host.check_cpus()
    yield host.check_shared_memory()
    yield network.check_name()
    yield network.check_loopback()
    yield host.check_terminal(sys.stdout, os.environ)
    yield host.check_hook()


@contextmanager
def _trials(meeting: Path) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """The processes that try torch; they are ended at the end of the block."""
    processes = [
        subprocess.Popen(module_line(_TRIAL, str(rank), str(meeting)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _of_torch(processes: Sequence["subprocess.Popen[bytes]"], deadline: float) -> list[HealthCheck]:
    """The checks that rank 0 printed; one that says so if it did not print all."""
    first = processes[0]
    trouble = None
    try:
        said, errors = first.communicate(timeout=max(0.1, deadline - time.perf_counter()))
        if first.returncode:
            trouble = (errors.decode(errors="replace").strip().splitlines() or [f"exit code {first.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        first.kill()
        said, _ = first.communicate()
        trouble = "no answer in time"
    checks = [msgspec.json.decode(line, type=HealthCheck) for line in said.splitlines()]
    done = checks[-1].name if checks else "the import of torch"
    if trouble is not None and done != _LAST:  # What follows the last trial is none.
        means = f"The trials of torch stopped after: {done}."
        checks.append(
            fail(_LAST, trouble, means, "Run `python -m esprof.recorder.doctor.torch_trial 0 .` to see where.")
        )
    return checks
