"""The ranks of a large run on a Dask cluster of two worker processes."""

import os
import signal

import msgspec
import pytest
from click.testing import CliRunner
from dask.distributed import Client, LocalCluster

import esprof
from benchmarks.large_job import LargeJob, write
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.replayed import answer
from esprof.replay.skeleton import large
from esprof.replay.skeleton.large import LargeReplay
from esprof.reports.commands import diagnose, replay

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "run"
    write(folder, LargeJob(2, 2, 2, steps=5, microbatches=4, kernels=5))
    return esprof.load(folder)


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def answer_by(run, workers):
    found = msgspec.to_builtins(answer(LargeReplay.by_rank(run, workers=workers)))
    found.pop("timing_s")
    return found


def test_a_cluster_gives_the_answer_of_one_process(run, client):
    on_cluster = answer_by(run, RankWorkers(client.get_executor(pure=False)))
    assert on_cluster == answer_by(run, RankWorkers())
    assert on_cluster["graph"]["nodes"] > 1000


def test_the_answer_is_the_same_if_a_worker_is_killed(run, client):
    waiting, killed = sorted(client.run(os.getpid).values()), []

    def tell(what):
        if what.startswith("Building") and not killed:
            killed.append(waiting[0])
            os.kill(killed[0], signal.SIGKILL)

    on_cluster = answer_by(run, RankWorkers(client.get_executor(pure=False), tell))
    assert killed
    assert on_cluster == answer_by(run, RankWorkers())


@pytest.mark.parametrize(
    ("verb", "options"),
    [(replay.command, ["--what-if", "cpu=2x", "--what-if", "network=2x,straggler=fix"]), (diagnose.command, [])],
    ids=["replay", "diagnose"],
)
def test_processes_and_a_cluster_answer_as_one_process_does(run, client, monkeypatch, verb, options):
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    answers = [
        CliRunner().invoke(verb, [str(run.path), "--json", *options, *more], catch_exceptions=False)
        for more in (["--processes", "1"], ["--processes", "2"], ["--dask", client.scheduler.address])
    ]
    shown = [msgspec.json.decode(one.stdout) | {"timing_s": None} for one in answers]
    assert shown[0] == shown[1] == shown[2]
