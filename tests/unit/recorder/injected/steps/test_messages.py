"""What the profiler records of messages, in this very process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps.messages import MessageProbe
from esprof.recorder.injected.steps.saves import rebind
from esprof.run.raw.message import NamedMessage, message_of


@pytest.fixture
def breaker():
    """That of the probe on rank 1 of four, which exchange nothing; torch is as it was afterwards."""
    originals = dist.isend, dist.irecv
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    breaker = CircuitBreaker("messages", Log())
    MessageProbe(breaker).install()
    yield breaker
    for wrapped, original in zip((dist.isend, dist.irecv), originals, strict=True):
        rebind(wrapped, original)
    dist.destroy_process_group()


def messages_of(work: Callable[[], object], folder: Path) -> list[NamedMessage | None]:
    """The messages that a profiler records of `work`."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    names = [event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]]
    return [message_of(name) for name in names if name.startswith("esprof.")]


def test_sends_and_receives_name_peer_tag_size_and_group(breaker, tmp_path):
    def work():
        dist.isend(torch.ones(3), 2, tag=7)
        dist.irecv(torch.ones(2, 2, dtype=torch.float64), src=0)
        dist.send(torch.ones(1), dst=3)
        dist.recv(torch.ones(1), 3)

    world = dist.group.WORLD.group_name
    assert messages_of(work, tmp_path) == [
        NamedMessage("send", 2, 7, 12, "float32", world),
        NamedMessage("recv", 0, 0, 32, "float64", world),
        NamedMessage("send", 3, 0, 4, "float32", world),
        NamedMessage("recv", 3, 0, 4, "float32", world),
    ]


def test_ranks_of_a_group_become_those_of_the_job(breaker, tmp_path):
    group = dist.new_group([1, 3])
    batch = [
        dist.P2POp(dist.isend, torch.ones(1), group=group, group_peer=1),
        dist.P2POp(dist.irecv, torch.ones(1), 3, group),
    ]
    found = messages_of(lambda: dist.batch_isend_irecv(batch), tmp_path)
    assert [(one.word, one.peer, one.group) for one in found] == [
        ("send", 3, group.group_name),
        ("recv", 3, group.group_name),
    ]


def test_nothing_is_named_without_a_peer_or_a_group_of_this_rank(breaker, tmp_path):
    other = dist.new_group([0, 2])

    def work():
        dist.irecv(torch.ones(1))
        dist.isend(torch.ones(1), 0, group=other)

    with pytest.warns(UserWarning, match="not belong"):
        assert messages_of(work, tmp_path) == []
    assert breaker.on


def test_a_fault_of_the_probe_does_not_reach_the_job(breaker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(NamedMessage, "name", property(lambda self: 1 / 0))
    assert messages_of(lambda: dist.isend(torch.ones(5), 2, tag=11), tmp_path) == []
    assert not breaker.on
    assert "messages failed" in capsys.readouterr().err


def test_a_wrong_call_raises_as_it_does_without_the_probe(breaker, tmp_path):
    def work():
        with pytest.raises(TypeError, match="of type torch"):
            dist.isend([torch.ones(1)], 2)

    assert messages_of(work, tmp_path) == []
    assert breaker.on


def test_without_a_profiler_nothing_is_named(breaker, monkeypatch):
    monkeypatch.setattr(breaker, "run", lambda *_: pytest.fail("the probe ran"))
    assert dist.isend(torch.ones(1), 2) is not None
