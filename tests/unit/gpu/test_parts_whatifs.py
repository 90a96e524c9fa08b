"""Which changes are carried out, and how what was said of them is held against what was measured. Nothing is run."""

import json

import pytest

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.parts import whatifs
from benchmarks.gpu.parts.whatifs import Change, Kind, Measured
from benchmarks.unseen import AS_IT_IS, Answer
from esprof.replay.whatif.grammar import parse


def kit(tmp_path, device="cpu"):
    return Kit(device, tmp_path, limit_s=10)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_change_has_a_what_if_that_esprof_reads(device, tmp_path):
    for kind in whatifs.made(kit(tmp_path, device)):
        for change in kind.changes:
            assert parse(change.what_if)
            if change.given_work:
                assert parse(change.given_work.format(0.4321))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_change_is_twice_what_the_job_has(device, tmp_path):
    for kind in whatifs.made(kit(tmp_path, device))[:2]:
        has = dict(zip(kind.arguments[::2], kind.arguments[1::2], strict=True))
        doubled = [change.arguments for change in kind.changes if len(change.arguments) == 2]
        assert [int(value) / int(has[flag]) for flag, value in doubled] == [2, 2, 2]


def answer(predicted):
    return Answer(predicted, predicted - 5, predicted + 5, (0.0, 0.0), known_error_pct=1.0)


@pytest.fixture
def said(monkeypatch):
    """What esprof says of the recording number N of a job, by what-if."""
    answers = {"gpu=0.5x": [answer(190.0), answer(202.0)], "gpu=0.6x": [answer(160.0), answer(164.0)]}
    monkeypatch.setattr(whatifs, "ask_run", lambda run, spec: answers[spec][run] if spec in answers else "no evidence")


def shown(tmp_path, capsys, *changes):
    kind = Kind("large", (), changes)
    measured = {("large", AS_IT_IS): Measured([0, 1], [100.0, 100.0], [60.0, 60.0])}
    for change in changes:
        measured["large", change.name] = Measured([0, 1], [160.0, 160.0], [100.0, 100.0])
    errors = whatifs.show_kind(kit(tmp_path), kind, measured)
    return errors, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_prediction_is_held_against_the_job_with_the_change(said, tmp_path, capsys):
    errors, (line,) = shown(tmp_path, capsys, Change("batch", (), "gpu=0.5x"))
    assert line["name"] == "what_if_error"
    assert line["value"] == 22.5  # 196 ms were said, 160 came.
    assert line["spread"] == {"low": 18.75, "high": 26.25}
    assert line["context"]["repeats"] == 2
    assert errors == pytest.approx([22.5])


def test_it_is_told_again_by_how_much_the_work_grew(said, tmp_path, capsys):
    """60 ns of work became 100: the device is as if 0.6 times as fast."""
    errors, lines = shown(tmp_path, capsys, Change("batch", (), "gpu=0.5x", "gpu={}x"))
    assert [(line["name"], line["value"]) for line in lines] == [
        ("what_if_error", 22.5),
        ("what_if_error_given_work", 1.25),
    ]
    assert errors == pytest.approx([22.5])


def test_a_refusal_says_why(said, tmp_path, capsys):
    errors, (line,) = shown(tmp_path, capsys, Change("sync", (), "sync=0"))
    assert (line["name"], line["value"]) == ("refused", 2)
    assert line["context"]["reasons"] == ["no evidence"]
    assert errors == []


def test_a_second_round_begins_only_where_it_fits(said, tmp_path, capsys, monkeypatch):
    """Each round takes 6 s of the part's 10."""
    rounds, now = [], [0.0]
    kind = Kind("large", (), (Change("batch", (), "gpu=0.5x"),))

    def carry_out(kit, kind, repeat, measured):
        rounds.append(repeat)
        now[0] += 6
        for name in (AS_IT_IS, "batch"):
            of = measured.setdefault((kind.name, name), Measured())
            of.runs.append(repeat)
            of.step_ms.append(100.0)
            of.work_ns.append(1.0)

    monkeypatch.setattr(whatifs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(whatifs, "made", lambda kit: [kind])
    monkeypatch.setattr(whatifs, "carry_out", carry_out)
    whatifs.measure(Kit("cpu", tmp_path, limit_s=10, began_s=now[0]))
    assert rounds == [0]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["name"] == "what_if_error_worst"
    whatifs.measure(Kit("cpu", tmp_path, limit_s=30, began_s=now[0]))
    assert rounds == [0, 0, 1]
