"""Reads of the number of processes, which no comparison of ranks shows."""

import os

import pytest
import torch.distributed as dist

from esprof.elastic.verify import processes
from tests.cases.elastic_job import small_trainer

GROUP = dist.ProcessGroup(dist.HashStore(), 0, 3)


def get_world_size():
    """As many scripts have it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def setting(name):
    return os.environ[name]


READS = {
    "the size of a group": lambda: dist.get_world_size(GROUP),
    "its method": lambda: GROUP.size(),
    "a variable": lambda: os.environ["WORLD_SIZE"],
    "a variable with a default": lambda: os.environ.get("LOCAL_WORLD_SIZE", "1"),
    "by os.getenv": lambda: os.getenv("GROUP_WORLD_SIZE"),
    "by a function of the script": lambda: setting("WORLD_SIZE"),
    "by a function of that name": lambda: get_world_size(),
}

OTHERS = {
    "the rank of a process": lambda: (GROUP.rank(), os.environ["RANK"]),
    "a copy of the environment": lambda: ({**os.environ}, os.environ.copy(), dict(os.environ.items())),
    "whether there is a variable": lambda: "WORLD_SIZE" in os.environ,
    "a variable that is set": lambda: os.environ.setdefault("WORLD_SIZE", "1"),
    "a variable that is missing": lambda: os.environ.get("NO_WORLD_SIZE"),
}


@pytest.fixture
def reads(monkeypatch):
    """Those of a process that has made no trainer yet."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setattr(processes, "_reads", processes._ReportedLines())


def _line_of(function):
    return f"{__file__}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_line_that_reads_the_number_of_processes_is_reported_once(reads, capsys, read):
    processes.report()
    read(), read()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"esprof: {_line_of(read)} reads the number of processes (3): ")


@pytest.mark.parametrize("read", OTHERS.values(), ids=OTHERS)
def test_other_reads_are_not_reported(reads, capsys, read):
    processes.report()
    read()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("module", ["esprof.elastic.runtime.transport", "torch.distributed.tensor"])
def test_reads_by_esprof_and_pytorch_are_not_reported(reads, capsys, module):
    """A collective of torch asks for the size on its own account."""
    file = f"/venv/lib/python3.11/site-packages/{module.replace('.', '/')}.py"
    library = {"__name__": module, "dist": dist, "os": os, "GROUP": GROUP}
    processes.report()
    exec(compile("dist.get_world_size(GROUP), GROUP.size(), os.environ['WORLD_SIZE']", file, "exec"), library)
    assert capsys.readouterr().err == ""


def test_reads_before_the_trainer_is_made_are_reported_then(reads, capsys):
    read = READS["a variable"]
    read()
    assert capsys.readouterr().err == ""
    small_trainer()
    assert f"{_line_of(read)} reads the number of processes" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["D0", "hetero-relaxed"])
def test_nothing_is_reported_where_bits_may_depend_on_the_processes(reads, capsys, level):
    small_trainer(determinism=level)
    READS["a variable"]()
    assert "number of processes" not in capsys.readouterr().err
