"""Where plans come from: files and stores, and how they are handed over."""

import json
import os
import threading
import time
from datetime import timedelta

import msgspec
import pytest
import torch.distributed as dist

from esprof.core.errors import EsprofError, OutputError, UsageError
from esprof.core.plan import PlanStatus, read_plan, read_plan_bytes
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile
from esprof.elastic.plans.store import PlanKey, connect
from tests.cases.plans import plan_of

EVEN = ((0, 1), (2, 3))


def test_a_file_is_read_once_each_time_it_changes(tmp_path):
    path = tmp_path / "plan.json"
    place = PlanFile(path)
    assert place.poll() is None
    path.write_bytes(b"one")
    assert (place.poll(), place.poll()) == (b"one", None)
    place.put(b"two")
    assert (place.poll(), place.poll()) == (b"two", None)
    path.unlink()
    assert place.poll() is None
    place.report_status(b"{}")
    assert (tmp_path / "plan.status.json").read_bytes() == PlanFile(path).status() == b"{}"


@pytest.mark.timeout(30)
def test_a_pipe_gives_nothing(tmp_path):
    for name in ("plan.json", "plan.status.json"):
        os.mkfifo(tmp_path / name)
    place = PlanFile(tmp_path / "plan.json")
    assert (place.poll(), place.status()) == (None, None)


def test_a_file_that_cannot_be_read_or_is_huge_gives_nothing(tmp_path):
    path = tmp_path / "plan.json"
    path.mkdir()
    assert PlanFile(path).poll() is None
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(65 << 20)
    assert PlanFile(tmp_path / "huge.json").poll() is None


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10))


def test_a_key_of_a_store_from_another_connection(store, monkeypatch):
    monkeypatch.setattr("esprof.elastic.plans.store.POLL_INTERVAL_S", 0.1)
    place, ours = PlanKey(store, "plan"), connect(f"127.0.0.1:{store.port}/plan", 10)
    assert (place.poll(), ours.status()) == (None, None)
    ours.put(b"one")
    time.sleep(0.15)
    assert (place.poll(), place.poll()) == (b"one", None)
    time.sleep(0.15)
    assert place.poll() is None  # It is still the same.
    place.report_status(b"{}")
    assert ours.status() == b"{}"


def test_a_store_that_is_gone_gives_nothing(store):
    ours = connect(f"127.0.0.1:{store.port}/plan", 10)
    del store

    class Gone:
        def check(self, keys):
            raise RuntimeError("connection reset")

        def set(self, key, value):
            raise RuntimeError("connection reset")

    place = PlanKey(Gone(), "plan")
    assert place.poll() is None
    with pytest.raises(OutputError, match="connection reset"):
        place.report_status(b"")
    del ours


@pytest.mark.parametrize("address", ["nowhere", "host:12", "host:port/key", ":12/key"])
def test_what_is_no_address(address):
    with pytest.raises(UsageError, match="the form HOST:PORT/KEY"):
        connect(address, 1)


def test_a_plan_gets_a_version_above_the_last_one(tmp_path):
    place = PlanFile(tmp_path / "plan.json")
    first, status = deliver(plan_of(EVEN), place, 0)
    assert (first.version, status) == (1, None)
    second, _ = deliver(plan_of(EVEN), place, 0)
    assert (second.version, second.parent) == (2, "plan-1")
    place.report_status(msgspec.json.encode(PlanStatus(state="refused", plan="x", version=7, step=1)))
    third, _ = deliver(plan_of(EVEN), place, 0)
    assert third.version == 8
    (tmp_path / "plan.json").write_bytes(b"spoilt")
    assert deliver(plan_of(EVEN, version=20), place, 0)[0].version == 20


def test_a_plan_that_another_replaces_is_reported(tmp_path):
    path = tmp_path / "plan.json"

    def send_another():
        while not path.exists():
            time.sleep(0.01)
        deliver(msgspec.structs.replace(plan_of(EVEN), id="another"), PlanFile(path), 0)

    thread = threading.Thread(target=send_another)
    thread.start()
    with pytest.raises(EsprofError, match="the plan another, version 2, has replaced it"):
        deliver(plan_of(EVEN), PlanFile(path), 60)
    thread.join()
    assert read_plan(path).id == "another"


def test_a_plan_whose_version_another_has_taken_is_sent_again(tmp_path):
    job, path = PlanFile(tmp_path / "plan.json"), tmp_path / "plan.json"

    def answer():
        while (raw := job.poll()) is None:
            time.sleep(0.01)
        refused = PlanStatus(state="refused", plan="plan-1", version=1, newest=6, step=1)
        job.report_status(msgspec.json.encode(refused))
        while (raw := job.poll()) is None:
            time.sleep(0.01)
        plan = read_plan_bytes(raw)
        job.report_status(
            msgspec.json.encode(PlanStatus(state="adopted", plan=plan.id, version=plan.version, newest=7, step=2))
        )

    thread = threading.Thread(target=answer)
    thread.start()
    given, status = deliver(plan_of(EVEN), PlanFile(path), 60)
    thread.join()
    assert (given.version, status.state) == (7, "adopted")


def test_a_plan_of_an_impossible_version_locks_no_other_out(tmp_path):
    place = PlanFile(tmp_path / "plan.json")
    plan = msgspec.to_builtins(plan_of(EVEN)) | {"version": 10**30}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    place.report_status(msgspec.json.encode(PlanStatus(state="refused", newest=4, step=1)))
    assert deliver(plan_of(EVEN), place, 0)[0].version == 5


def test_it_waits_for_what_the_job_says_of_this_very_plan(tmp_path):
    place = PlanFile(tmp_path / "plan.json")

    def job():
        mine = PlanFile(tmp_path / "plan.json")
        while (raw := mine.poll()) is None:
            time.sleep(0.01)
        version = msgspec.json.decode(raw)["version"]
        mine.report_status(msgspec.json.encode(PlanStatus(state="adopted", plan="other", version=1, step=1)))
        mine.report_status(msgspec.json.encode(PlanStatus(state="adopted", plan="plan-1", version=version, step=4)))

    thread = threading.Thread(target=job)
    thread.start()
    given, status = deliver(plan_of(EVEN), place, 30)
    thread.join()
    assert (status.state, status.step, given.version) == ("adopted", 4, 1)
