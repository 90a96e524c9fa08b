"""Where the ranks of a run are built, by --processes and --dask."""

import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

import esprof
from esprof.core.errors import MissingDependencyError, UsageError
from esprof.replay.skeleton import large
from esprof.reports.commands.rank_workers import WhereRanksAre, rank_workers
from tests.cases.exported import cpu_run
from tests.cases.run_directory import write_run

ANYWHERE = WhereRanksAre(None, None)


@pytest.fixture
def run(tmp_path):
    made = cpu_run()
    write_run(tmp_path / "run", made.meta, {("events", rank): made.events(rank) for rank in made.ranks})
    return esprof.load(tmp_path / "run")


@pytest.fixture
def all_large(monkeypatch):
    monkeypatch.setattr(large, "MAX_EVENTS", 0)


def executor_of(run, where):
    with rank_workers(run, where, print) as workers:
        return workers.executor


def test_a_run_of_usual_size_is_built_in_this_process(run):
    assert executor_of(run, ANYWHERE) is None
    assert executor_of(run, WhereRanksAre(2, None)) is None


@pytest.mark.usefixtures("all_large")
def test_a_large_run_directory_is_built_in_several_processes(run):
    assert isinstance(executor_of(run, WhereRanksAre(2, None)), ProcessPoolExecutor)
    assert executor_of(run, WhereRanksAre(1, None)) is None


@pytest.mark.usefixtures("all_large")
def test_traces_are_built_in_this_process():
    assert executor_of(cpu_run(), ANYWHERE) is None
    for where in (WhereRanksAre(2, None), WhereRanksAre(None, "tcp://127.0.0.1:1")):
        with pytest.raises(UsageError, match="Run directory"):
            executor_of(cpu_run(), where)


@pytest.mark.usefixtures("all_large")
def test_a_missing_library_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(MissingDependencyError) as error:
        executor_of(run, WhereRanksAre(None, "tcp://127.0.0.1:1"))
    assert error.value.remedy == "pip install 'esprof[scale]'"
