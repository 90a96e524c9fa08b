"""`esprof record` around torch.distributed.pipelining over gloo: who sends to whom is recorded, and replayed."""

import pytest

from esprof import load
from esprof.replay.replayed import Replayed, answer
from tests.cases.command_line import esprof
from tests.cases.record import record, torchrun

pytestmark = pytest.mark.integration

STEPS, WINDOW, MICRO_BATCHES = 24, 8, 4
PIPELINES = ("pipeline=gpipe", "stages=3+5", "pipeline=interleaved,stages=2+2+2+2", "microbatches=8")


def test_a_pipeline_is_recorded_and_replayed(tmp_path):
    job = torchrun("pipelined.py", STEPS, "1f1b", MICRO_BATCHES)
    ended = record(tmp_path / "run", job, stack_steps=0, shapes=True)
    assert ended.code == 0, ended.stderr
    said = answer(Replayed.of(ended.run, max_error_pct=1000), ["network=0.5x", *PIPELINES])
    # An activation and its gradient for each microbatch, at both ends.
    assert said.coverage.p2p == said.coverage.p2p_matched == 4 * MICRO_BATCHES * WINDOW
    # Load changes the steps, and their replay with them.
    assert all(abs(step.error_pct) < 30 for step in said.steps), said.steps
    assert said.explained_pct > 90
    assert said.what_if[0].answered
    for changed in said.what_if[1:]:
        # On a busy machine the replay may be too far from the passes.
        assert changed.answered or "give the recorded schedule with an error" in (changed.reason or "")
    assert {row["channel"] for row in ended.run.events(0).arrow.to_pylist()} == {None, "0/0"}
    assert esprof("validate", ended.out).returncode == 0
    assert "sends and receives" in esprof("replay", ended.out).stdout
    shared = tmp_path / "shared"
    exported = esprof("export", ended.out, "--format", "run", "--redact", "-o", shared)
    assert exported.returncode == 0, exported.stderr
    assert answer(Replayed.of(load(shared), max_error_pct=1000), []).coverage == said.coverage
