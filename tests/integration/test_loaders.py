"""Real DataLoaders: what-ifs on batches that take 60 ms to read, predicted and then made, and causes of waits."""

import json
from pathlib import Path

import numpy as np
import pytest

from esprof import Run
from esprof.analyzers.finding import Finding
from esprof.replay import Replayed
from esprof.replay.whatif.loading.recorded_reads import recorded_reads
from tests.cases.findings import ungrouped
from tests.cases.record import ESPROF, Ended, job, record, run

pytestmark = pytest.mark.integration

BATCH_NS = 60e6


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Ended:
    ended = record(
        tmp_path_factory.mktemp("loaders") / "run", job("reads.py", 1), skip=4, warmup=1, steps=16, stack_steps=0
    )
    assert ended.code == 0, ended.stderr
    return ended


def test_the_parts_of_a_batch_are_recorded(recorded):
    stages = recorded.run.stages(0).to_pandas()
    parts, made = stages[stages.kind == "part"], stages[stages.kind == "fetch"]
    assert set(parts.name) == {"read", "collate"}
    assert (parts[parts.name == "read"].took_ns >= BATCH_NS).all()
    # All that blocks is the sleep; the first batch has no counters.
    counted = made[made.ready_ns.notna()]
    assert len(counted) == len(made) - 1
    blocked = counted.end_ns - counted.start_ns - counted.cpu_ns - counted.ready_ns
    assert blocked.median() > 0.8 * BATCH_NS


def test_the_pass_of_a_batch_is_recorded(recorded):
    stages = recorded.run.stages(0)
    nexts = stages.where(stages.is_kind("next"))
    assert set(nexts.ints("in_order").tolist()) == {1}
    assert set(nexts.ints("batches").tolist()) == {40}


def found_on_input(run: Run) -> dict[str, Finding]:
    return {one.id: one for one in ungrouped(Replayed.of(run, max_error_pct=1000)) if one.id.startswith("ESP1")}


def test_a_rank_that_waits_for_reads_waits_for_storage(recorded):
    found = found_on_input(recorded.run)
    assert list(found) == ["ESP102"]
    assert found["ESP102"].title.endswith(": batches wait for storage")
    parts = found["ESP102"].evidence["parts_of_batches"]
    assert max(parts.value, key=parts.of) == "read"


def test_workers_of_a_stateful_loader_are_recorded(tmp_path):
    pytest.importorskip("torchdata")
    ended = record(tmp_path / "run", job("reads.py", 1, "stateful"), skip=4, warmup=1, steps=16, stack_steps=0)
    assert ended.code == 0, ended.stderr
    stages = ended.run.stages(0)
    assert np.count_nonzero(stages.is_kind("fetch")) == np.count_nonzero(stages.is_kind("next")) == 40
    assert list(found_on_input(ended.run)) == ["ESP102"]


def test_slow_collation_and_slow_starts_of_workers_are_told_apart(tmp_path):
    ended = record(tmp_path / "run", job("late_batches.py"), skip=4, warmup=1, steps=16, stack_steps=0)
    assert ended.code == 0, ended.stderr
    found = found_on_input(ended.run)
    assert set(found) == {"ESP106", "ESP111"}
    assert found["ESP106"].title.endswith(": collating takes the time")
    assert found["ESP111"].evidence["start_up"].of(0) >= 100e6
    assert found["ESP111"].evidence["epochs"].value == 3


def test_more_workers_and_faster_storage_shorten_the_wait(recorded):
    pricer = Replayed.of(recorded.run, max_error_pct=1000).pricer
    now, two, storage = pricer.answers(["loader.workers=1", "loader.workers=2", "storage=4x"])
    assert 0.4 < two.predicted_us / now.predicted_us < 0.7
    assert storage.predicted_us < two.predicted_us


def test_a_promise_on_workers_is_made_and_carried_out(recorded):
    path = Path(recorded.run.path)
    options = (
        "--what-if",
        "loader.workers=2",
        "--repeats",
        1,
        "--skip",
        4,
        "--steps",
        16,
        "--tolerance",
        1000,
        "--json",
    )
    ended = run([*ESPROF, "verify", str(path), *map(str, options), "--", *job("reads.py", 1)])
    assert ended.code == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["knobs"] == [{"name": "loader.workers", "before": "1", "after": "2"}]
    assert answer["predicted"]["us"] < 0.8 * answer["before"]["us"]
    assert answer["verdict"] in ("held", "close")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_keys_of_all_samples_are_recorded_in_order(workers, tmp_path):
    ended = record(tmp_path / "run", job("keyed.py", workers), sample_keys=True, steps=4, stack_steps=0)
    assert ended.code == 0, ended.stderr
    accesses = ended.run.accesses(0).to_pandas().sort_values(["loader", "batch"], kind="stable")
    printed = json.loads(ended.stdout.splitlines()[-1])
    assert [own.key.tolist() for _, own in accesses.groupby("loader")] == printed["passes"]
    assert set(accesses["items"]) == {50}
    assert sorted(set(accesses.worker.fillna(-1))) == ([0, 1] if workers else [-1])
    if not workers:
        counted = recorded_reads(ended.run, 0).curve.rate("lru", 20 / 50)
        hits = pytest.approx(printed["hits"][1])
        assert (counted.rate * counted.reads, counted.reads) == (hits, 50), "as the job's own cache counted"


def test_keys_are_recorded_on_request_only(recorded):
    assert len(recorded.run.accesses(0)) == 0
