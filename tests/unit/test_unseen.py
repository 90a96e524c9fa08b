"""How what was said of jobs is held against what was measured; nothing is run."""

import json
import re
import sys

import pytest

from benchmarks import unseen
from benchmarks.testbed.bed import MOST_OF_THE_CORES
from benchmarks.unseen import AS_IT_IS, KINDS, Answer, Verdict, chosen
from tests.cases import step_runs

CORES = 2
"""Of the machine that the settings were made for."""


def verdict(answers, before=(200.0, 200.0), after=(100.0, 104.0)):
    return Verdict("flat", "network=2x", before, after, answers, [])


def answer(predicted, *, low=None, high=None, before=200.0):
    low, high = low or predicted, high or predicted
    saving = (before - high, before - low)
    return Answer(predicted=predicted, low=low, high=high, saving=saving, known_error_pct=1.0)


def test_the_error_is_that_of_the_means():
    assert verdict([answer(100), answer(110.4)]).error_pct == pytest.approx(100 * (105.2 / 102 - 1))


@pytest.mark.parametrize(("predicted", "above"), [(102, 0), (105, 0), (112.2, 6), (91.8, 6)])
def test_an_error_counts_by_what_exceeds_the_larger_noise(predicted, above):
    assert verdict([answer(predicted)]).above_noise_pct == pytest.approx(above)
    noisy = verdict([answer(predicted)], before=(200.0, 240.0))
    assert noisy.above_noise_pct == 0


def test_each_repeats_intervals_count_by_themselves():
    """The true step is 102 ms, the true gain 98 ms. The second repeat was slower as a whole, its gain was not."""
    one = verdict([answer(100, low=95, high=105), answer(110, low=105, high=115, before=208), answer(90)])
    assert one.steps_held == 1
    assert one.gains_held == 2


def test_figures_over_all_leave_out_what_was_refused(capsys):
    unseen.show_all([verdict([answer(112.2, low=90, high=120)]), verdict([answer(102)]), verdict([])])
    figures = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert figures["unseen_what_if_error_worst"]["value"] == pytest.approx(10)
    assert figures["unseen_what_if_error_worst"]["context"] == {"cases": 2, "refused": 1}
    assert figures["unseen_what_if_above_noise_median"]["value"] == pytest.approx(3)
    assert figures["unseen_what_if_steps_held"]["value"] == 100


def test_cases_are_chosen_by_kind_and_what_if():
    assert [(kind.name, kind.specs) for kind in chosen(re.compile("^flat network=2x$"))] == [("flat", ("network=2x",))]
    assert list(chosen(re.compile("^$"))) == []
    assert tuple(chosen(re.compile(""))) == KINDS


def test_every_kind_fits_the_machine_with_every_change():
    for kind in KINDS:
        for setting in (kind.setting, *(unseen.changed(kind.setting, spec) for spec in kind.specs)):
            assert len(setting.cpu) == len(setting.rate)
            assert sum(setting.cpu) <= MOST_OF_THE_CORES * CORES + 1e-9


def test_a_step_is_measured_within_the_window_on_all_ranks():
    phases = ["plain", "warmup", "timed", "timed", "timed", "export"]
    ranks = [[9, 9, 50, 10, 12, 70], [9, 9, 60, 14, 16, 70]]
    run = step_runs.run(*(step_runs.step_table(times, phase=phases) for times in ranks))
    assert unseen.mean_step_ms(run) == pytest.approx(13)


@pytest.fixture
def bed(monkeypatch):
    """Recordings that hold nothing, of steps that get longer by 1 ms each; the log of what was recorded."""
    log = []

    def record(setting, out):
        log.append(out.name)
        return len(log)

    monkeypatch.setattr(unseen, "record", record)
    monkeypatch.setattr(unseen, "mean_step_ms", float)
    return log


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["unseen", *map(str, arguments)])
    unseen.main()


def test_what_was_kept_is_predicted_again(tmp_path, bed, monkeypatch, capsys):
    asked = []

    def ask(path, specs):
        asked.append(path)
        return {spec: "no evidence" if spec == "cpu=0.7x" else answer(4.0) for spec in specs}

    monkeypatch.setattr(unseen, "ask", ask)
    run(monkeypatch, "--only", "^flat (network=2x|cpu=0.7x)$", "--keep", tmp_path)
    turn = ["flat-as-it-is", "flat-network-2x", "flat-cpu-0-7x"]
    assert bed == [f"{name}-{repeat}" for repeat in (0, 1) for name in turn]
    measured = {AS_IT_IS: [1.0, 4.0], "network=2x": [2.0, 5.0], "cpu=0.7x": [3.0, 6.0]}
    assert json.loads((tmp_path / "measured.json").read_text()) == {"flat": measured}
    first = capsys.readouterr().out
    error, refused = (json.loads(line) for line in first.splitlines()[:2])
    assert error["context"]["after_ms"] == 3.5
    assert refused["context"]["reasons"] == ["no evidence"]

    run(monkeypatch, "--again", tmp_path)
    assert capsys.readouterr().out == first
    assert len(bed) == 6
    assert asked == [tmp_path / f"flat-as-it-is-{repeat}" for repeat in (0, 1)] * 2


def test_what_is_kept_of_other_cases_stays(tmp_path, bed, monkeypatch):
    monkeypatch.setattr(unseen, "ask", lambda path, specs: dict.fromkeys(specs, "no evidence"))
    for spec in ("network=2x", "rank1.cpu=0.5x"):
        run(monkeypatch, "--repeats", 1, "--only", f"^flat {spec}$", "--keep", tmp_path)
    measured = json.loads((tmp_path / "measured.json").read_text())["flat"]
    assert measured == {AS_IT_IS: [3.0], "network=2x": [2.0], "rank1.cpu=0.5x": [4.0]}
