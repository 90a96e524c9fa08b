"""What-ifs on a real DataLoader whose batches take 60 ms to read: predicted from a run with one worker, then made."""

import json
from pathlib import Path

import pytest

from esprof.replay import Replayed
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
