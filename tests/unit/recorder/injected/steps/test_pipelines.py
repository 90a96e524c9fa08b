"""How passes of a pipeline are marked, in this very process."""

import json
import sys
from types import SimpleNamespace

import pytest
from torch.profiler import ProfilerActivity, profile

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps.messages import PipelineProbe
from esprof.run.raw.passes import NamedPass, pass_of


@pytest.fixture
def probed(monkeypatch):
    """(a stage as torch's pipelines have them, the probe's circuit breaker)."""

    class Stage:
        stage_index = 2

        def forward_one_chunk(self, fwd_chunk_id, args, kwargs=None):
            return "forward", fwd_chunk_id, args

        def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True, last_backward=False):
            return "backward", bwd_chunk_id

        def backward_weight_one_chunk(self, bwd_chunk_id, last_backward=False):
            return "weights", bwd_chunk_id

    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.stage", SimpleNamespace(_PipelineStageBase=Stage))
    breaker = CircuitBreaker("pipelines", Log())
    PipelineProbe(breaker).install()
    return Stage(), breaker


def test_each_pass_is_marked_with_stage_and_microbatch(probed, tmp_path):
    stage, breaker = probed
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert stage.forward_one_chunk(3, (1,)) == ("forward", 3, (1,))
        assert stage.backward_one_chunk(3, loss=None, last_backward=True) == ("backward", 3)
        stage.backward_one_chunk(4, full_backward=False)
        stage.backward_weight_one_chunk(4)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert [name for name in names if pass_of(name)] == ["PP:2F3", "PP:2B3", "PP:2I4", "PP:2W4"]
    assert breaker.on


def test_without_a_profiler_nothing_is_marked(probed, monkeypatch):
    stage, breaker = probed
    monkeypatch.setattr(breaker, "run", lambda *_: pytest.fail("the probe ran"))
    assert stage.forward_one_chunk(0, ()) == ("forward", 0, ())


def test_a_stage_of_another_kind_is_passed_over(probed, capsys):
    stage, breaker = probed
    del type(stage).stage_index
    with profile(activities=[ProfilerActivity.CPU]):
        assert stage.forward_one_chunk(0, ()) == ("forward", 0, ())
    assert not breaker.on
    assert "pipelines failed" in capsys.readouterr().err


def test_a_name_tells_its_pass():
    assert pass_of(NamedPass(1, "F", 12).name) == NamedPass(1, "F", 12)
    assert [pass_of(name) for name in ("PP:1F", "PP:0SEND_F1", "Forward 1", "PP:0F1 ")] == [None] * 4
