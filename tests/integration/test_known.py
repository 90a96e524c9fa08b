import pytest

from benchmarks.known.__main__ import lines
from benchmarks.known.judge import judge
from benchmarks.known.tables import report

pytestmark = pytest.mark.integration


def test_jobs_are_judged_end_to_end(capsys):
    judged = [judge(shape, seed, 10.0) for seed, shape in enumerate(("ddp", "pipeline", "gloo", "graphs", "fsdp"))]
    assert not [one.failure for one in judged if one.failure]
    for one in judged:
        assert one.said
        assert abs(one.step_error_pct) < 0.1  # The steps that were written are the steps that are read.
        assert len(one.verdicts) >= 8
        assert all(verdict.reason for verdict in one.verdicts if verdict.predicted is None)
    report(judged)
    assert "known_what_if_error" in capsys.readouterr().out
    assert len(list(lines(judged))) >= 5 * 9


def test_blocks_of_repeated_work_have_no_true_steps():
    """Without step marks, a CUDA graph's launch is the block that is repeated: its findings are judged, its what-ifs not."""
    one = judge("graphs", 70064, 10.0)
    assert not one.failure
    assert one.said
    assert one.said.unit == "block"
    assert not one.verdicts
    assert one.blame
    assert one.blame.planted is None


def test_input_data_of_all_ranks_may_cost_more_than_what_was_planted():
    one = judge("pieces", 70077, 10.0, findings_only=True)
    assert one.blame
    assert one.blame.named == (1,)
    assert 0 < one.blame.felt < one.blame.others
    assert not one.blame.is_largest


def test_a_program_that_fails_is_counted(monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr("benchmarks.known.judge.ask", broken)
    one = judge("gloo", 7, 10.0)
    assert "no such luck" in one.failure
    report([one])
    assert "FAILED --class gloo --seed 7" in capsys.readouterr().out
