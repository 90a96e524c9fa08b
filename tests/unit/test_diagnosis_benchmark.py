"""How what was said of planted faults is held against the truth; nothing is recorded."""

import json
import re

import pytest

from benchmarks.diagnosis import __main__ as command
from benchmarks.diagnosis import carrying_out, eighth, eleventh, fifth, first, ninth, second, seventh, sixth, tenth
from benchmarks.diagnosis.carrying_out import Measured, Planted, Recorded, planted
from benchmarks.diagnosis.cases import Case, Fault, Hosts, Job, cases, draw
from benchmarks.diagnosis.judge import Control, Judged, Truth, control, score, truths
from benchmarks.diagnosis.places import fault_lines, named_locations, names_location
from benchmarks.diagnosis.tables import confusion, show_all
from benchmarks.model_errors import CarriedOut
from benchmarks.testbed.bed import MOST_OF_THE_CORES
from tests.cases import step_runs

CORES = 2
"""Of the machine that the hosts were made for."""

SCRIPT = """\
import time

# FAULT slow
def work(model):
    time.sleep(1)
# END FAULT


def main():
    model = 1
    work(model)
    # FAULT other
    time.sleep(2)
    # END FAULT
    # FAULT slow
    model += 1
    # END FAULT
"""

JOB = Job("toy", carrying_out.ROOT / "toy.py", ())
SLOW = Fault("slow", ("ESP201",), (1, 2), second_best=("ESP301",), one_rank=True, placed=True)


def test_a_fault_lies_between_its_marks_and_where_its_function_is_called():
    assert fault_lines(SCRIPT, "slow") == [4, 5, 11, 16]
    assert fault_lines(SCRIPT, "other") == [13]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1", "no lines are marked"),
        ("# FAULT a\nx = 1", "no end"),
        ("# FAULT a\n# FAULT b\n", "before a has ended"),
    ],
)
def test_marks_that_make_no_sense_are_refused(source, reason):
    with pytest.raises(ValueError, match=reason):
        fault_lines(source, "a")


def test_places_are_found_wherever_a_finding_names_them():
    finding = {
        "advice": "Look at train.py(12): main, calling <built-in function sleep>.",
        "evidence": {"stacks": {"value": [{"0": "jobs/gpt.py:7"}]}, "python3.11/random.py(3): x": {"value": 1}},
        "saving_us": 12.5,
    }
    assert list(named_locations(finding)) == [("train.py", 12), ("jobs/gpt.py", 7), ("python3.11/random.py", 3)]


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("jobs/gpt.py(7): main", True),
        ("gpt.py:7", True),
        ("gpt.py(8): main", False),
        ("other/gpt.py(7): main", False),
        ("t.py(7): main", False),
        ("line 7", False),
    ],
)
def test_a_place_is_right_by_line_and_by_the_end_of_the_path(said, right):
    assert names_location({"advice": said}, "jobs/gpt.py", [6, 7]) is right


def truth(fault=SLOW, saving_us=1000.0, lines=(4, 5), noise_us=10.0):
    case = Case(JOB, fault, seed=0, rank=1, strength=1.5)
    planted = Planted("toy", fault.name, 1, 1.5, 0, "toy.py", list(lines))
    return Truth(
        case, planted, saving_us, step_us=5000.0, noise_us=noise_us, free_saving_us=saving_us, taken_pct=(1.0, 2.0)
    )


def finding(number, ranks=(0, 1), saving=None, interval=(None, None), **evidence):
    return {
        "id": number,
        "ranks": list(ranks),
        "saving_us": saving,
        "saving_low_us": interval[0],
        "saving_high_us": interval[1],
        "saving_pct": None if saving is None else saving / 50,
        "evidence": evidence,
    }


def test_rank_place_and_price_are_those_of_the_finding_that_names_the_cause():
    findings = [
        finding("ESP301", saving=2000),
        finding("ESP201", ranks=[1], saving=900, interval=(800, 1100), python_line="toy.py(5): work"),
    ]
    one = score(truth(), findings)
    assert (one.first, one.is_first, one.is_first_or_second_best, one.is_anywhere) == ("ESP301", False, True, True)
    assert (one.rank_right, one.place_right, one.predicted_us, one.holds) == (True, True, 900, True)


def test_the_wrong_rank_line_and_interval_are_told():
    one = score(truth(), [finding("ESP201", ranks=[0], saving=500, interval=(400, 600), python_line="toy.py(9): main")])
    assert (one.is_first, one.rank_right, one.place_right, one.holds) == (True, False, False, False)


def test_the_second_best_finding_is_looked_at_where_none_names_the_cause():
    one = score(truth(), [finding("ESP101", saving=3000), finding("ESP301", ranks=[1], saving=900)])
    assert (one.is_first_or_second_best, one.is_anywhere) == (False, False)
    assert (one.rank_right, one.place_right, one.predicted_us, one.holds) == (True, False, 900, False)


def test_what_a_fault_does_not_have_is_not_counted():
    one = score(truth(Fault("padding", ("ESP701",), (1, 1)), lines=()), [])
    assert (one.first, one.is_first, one.rank_right, one.place_right) == ("nothing", False, None, None)
    assert (one.predicted_us, one.holds) == (None, None)


def test_the_largest_false_share_counts_on_a_job_without_fault():
    findings = [finding("ESP901"), finding("ESP101", saving=50), finding("ESP301", saving=200)]
    assert control(JOB, findings) == Control("toy", "ESP301", 4.0, said_us=200)
    linked = Job("toy", JOB.script, (), true_without_fault=("ESP301",))
    assert control(linked, findings) == Control("toy", "ESP101", 1.0, said_us=200)
    assert control(JOB, [finding("ESP901")]) == Control("toy", "nothing", 0.0)


def test_communication_is_no_mistake_where_it_was_measured_to_cost_as_much():
    findings = [finding("ESP101", saving=50), finding("ESP301", saving=600)]
    assert control(JOB, findings, measured_us=580).largest_id == "ESP101"
    found = control(JOB, findings, measured_us=200)
    assert (found.largest_id, found.largest_pct) == ("ESP301", pytest.approx(8))


def case_of(*findings, saving_us=1000.0, fault=SLOW):
    planted = truth(fault, saving_us)
    return Judged(planted, [score(planted, one) for one in findings], [])


RIGHT = [finding("ESP201", ranks=[1], saving=1500, interval=(900, 1600), python_line="toy.py(5): work")]
WRONG = [finding("ESP101", saving=700)]


def test_confusion_counts_recordings_by_what_was_planted_and_found_first():
    rows = confusion([case_of(RIGHT, WRONG), case_of(RIGHT)], [Control("toy", "ESP301", 7.0)])
    assert rows == [["none", "ESP301", "1"], ["slow", "ESP101", "1"], ["slow", "ESP201", "2"]]


def test_the_error_is_that_of_the_mean_prediction():
    assert case_of(RIGHT, RIGHT).error_pct == pytest.approx(50)
    assert case_of(WRONG).error_pct is None
    assert case_of(RIGHT, saving_us=-3.0).error_pct is None


def test_what_noise_explains_is_no_error():
    assert case_of(RIGHT).error_beyond_noise_pct == pytest.approx(49)
    noisy = Judged(truth(noise_us=600), case_of(RIGHT).scores, [])
    assert noisy.error_beyond_noise_pct == 0
    assert Judged(truth(noise_us=1001), case_of(RIGHT).scores, []).error_beyond_noise_pct is None
    near = [finding("ESP201", ranks=[1], saving=700, interval=(600, 800), python_line="toy.py(5): work")]
    assert (score(truth(), near).holds_beyond_noise, score(truth(noise_us=250), near).holds_beyond_noise) == (
        False,
        True,
    )


def test_the_first_finding_may_be_right_in_part_or_innocent():
    assert score(truth(), RIGHT).is_first_whole
    wrong_rank = score(truth(), [finding("ESP201", ranks=[0], saving=500, python_line="toy.py(5): work")])
    assert (wrong_rank.is_first, wrong_rank.is_first_whole, wrong_rank.is_innocent_first) == (True, False, False)
    assert score(truth(), WRONG).is_innocent_first
    assert not score(truth(), []).is_innocent_first
    assert not score(truth(), [finding("ESP301", saving=5)]).is_innocent_first
    family = Fault("slow", ("ESP2",), (1, 2), one_rank=True)
    assert score(truth(family, lines=()), RIGHT).is_first_whole


def test_figures_over_all_cases(capsys):
    show_all([case_of(RIGHT, WRONG), case_of(RIGHT, saving_us=3000.0)], [Control("toy", "ESP301", 7.0)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    figures = {one["name"]: one for one in map(json.loads, lines)}
    assert figures["diagnosis_cause_first"]["value"] == pytest.approx(66.6667)
    assert figures["diagnosis_rank_right"]["value"] == pytest.approx(66.6667)
    assert figures["diagnosis_interval_holds"]["value"] == 50
    assert figures["diagnosis_saving_error_median"]["value"] == 50
    assert figures["diagnosis_saving_error_mean"]["context"] == {"cases": 2}
    assert figures["diagnosis_false_findings"]["value"] == 1


def test_a_step_is_measured_on_all_plain_steps_but_the_first():
    phases = ["plain", "plain", "warmup", "timed", "export", "plain"]
    ranks = [[900, 10, 50, 50, 70, 14], [800, 20, 60, 60, 70, 24]]
    ready = [0, 1_000_000, 0, 0, 0, 5_800_000]
    run = step_runs.run(*(step_runs.step_table(times, phase=phases, ready_ns=ready) for times in ranks))
    assert carrying_out.measure(run) == Measured(pytest.approx(17_000), pytest.approx(20), pytest.approx(13_600))


def test_a_fault_is_measured_against_its_jobs_control(monkeypatch):
    job = Job("toy", JOB.script, (SLOW,))
    fault, off = draw(job, SLOW, 0), Case(job, None, 0)
    steps = {"on": [Measured(130, 4, 125), Measured(150, 6, 141)], "off": [Measured(100, 1, 99), Measured(104, 3, 101)]}
    monkeypatch.setattr(Recorded, "measured", property(lambda self: steps[self.runs]))
    planted = Planted("toy", "slow", 1, 1.5, 0, "toy.py", [])
    ((one, _),) = truths([Recorded(off, planted, "off"), Recorded(fault, planted, "on")])
    assert (one.saving_us, one.step_us, one.noise_us, one.free_saving_us, one.taken_pct) == (38, 140, 20, 33, (2, 5))
    assert list(truths([Recorded(fault, planted, "on")])) == []


def test_a_fault_with_pairs_costs_the_median_of_their_differences(monkeypatch):
    job = Job("toy", JOB.script, (SLOW,))
    pairs = [(Measured(100, 1, 99), Measured(130, 3, 126)), (Measured(90, 1, 89), Measured(124, 3, 121))]
    pairs.append((Measured(100, 1, 99), Measured(150, 3, 145)))
    monkeypatch.setattr(Recorded, "measured_pairs", property(lambda self: pairs))
    planted = Planted("toy", "slow", 1, 1.5, 0, "toy.py", [])
    recorded = Recorded(draw(job, SLOW, 0), planted, [], pairs=[("without", "with")])
    ((one, _),) = truths([recorded])
    assert (one.saving_us, one.step_us, one.noise_us, one.free_saving_us, one.taken_pct) == (34, 130, 10, 32, (1, 3))


def test_pairs_are_recorded_beside_the_case_and_take_turns(tmp_path):
    job = Job("toy", JOB.script, (SLOW,))
    off, fault = Case(job, None, 0), draw(job, SLOW, 0)
    made = list(carrying_out.turns([off, fault], tmp_path, repeats=1, pairs=2))
    where = ["toy-none-0/run-0", "toy-slow-0/run-0"]
    where += [f"toy-slow-0/pair-{half}" for half in ("0/without", "0/with", "1/with", "1/without")]
    assert [str(turn.out.relative_to(tmp_path)) for turn in made] == where
    assert [turn.case.planted for turn in made] == ["none", "slow", "none", "slow", "slow", "none"]
    assert [turn.window for turn in made] == [carrying_out.WINDOW] * 2 + [carrying_out.NO_WINDOW] * 4
    assert [turn.name for turn in carrying_out.turns([fault], tmp_path, 0, 1)] == [
        "toy slow, pair-0 without it",
        "toy slow, pair-0 with it",
    ]


def test_a_seed_draws_rank_and_strength():
    job = first.JOBS[0]
    fault = next(fault for fault in job.faults if fault.one_rank)
    drawn = [draw(job, fault, seed) for seed in range(20)]
    assert drawn == [draw(job, fault, seed) for seed in range(20)]
    assert {case.rank for case in drawn} == {0, 1}
    low, high = fault.strength
    assert all(low <= case.strength <= high for case in drawn)
    assert len({case.strength for case in drawn}) > 10


def test_what_is_done_to_hosts_is_done_to_the_rank_or_to_all():
    job = Job("toy", JOB.script, (), hosts=Hosts((0.8, 0.6), ("100mbit", "200mbit")))
    slow = Case(job, Fault("slow", (), (0, 1), one_rank=True, quota=True), 0, rank=1, strength=0.5)
    assert slow.hosts == Hosts((0.8, 0.3), ("100mbit", "200mbit"))
    links = Case(job, Fault("links", (), (0, 1), link=True), 0, rank=1, strength=0.1)
    assert links.hosts == Hosts((0.8, 0.6), ("10mbit", "20mbit"))
    assert "--fault none" in " ".join(slow.arguments)


every_set = pytest.mark.parametrize(
    "jobs",
    [first.JOBS, second.JOBS, fifth.JOBS, sixth.JOBS, seventh.JOBS, eighth.JOBS, ninth.JOBS, tenth.JOBS, eleventh.JOBS],
    ids=["first", "second", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"],
)


@every_set
def test_every_script_holds_its_faults(jobs):
    for job in jobs:
        every_source = "".join(path.read_text() for path in {job.script, *map(job.source_of, job.faults)})
        for fault in job.faults:
            if not fault.is_done_to_hosts:
                assert re.search(rf'fault == "{fault.name}"', every_source), (job.name, fault.name)
                assert fault_lines(job.source_of(fault).read_text(), fault.name)
        if job.hosts:
            assert sum(job.hosts.cpu) <= MOST_OF_THE_CORES * CORES + 1e-9


@every_set
def test_every_fault_names_a_cause_and_what_it_is_done_to(jobs):
    for job in jobs:
        for fault in job.faults:
            assert fault.accepted, fault.name
            assert not set(fault.accepted) & set(fault.second_best), fault.name
            assert all(re.fullmatch(r"ESP\d+", one) for one in (*fault.accepted, *fault.second_best)), fault.name
            assert 0 < fault.strength[0] <= fault.strength[1], fault.name
            assert job.hosts or not fault.is_done_to_hosts, fault.name
            assert job.ranks > 1 or not fault.one_rank, fault.name


@pytest.mark.parametrize(
    "jobs",
    [fifth.JOBS, sixth.JOBS, seventh.JOBS, eighth.JOBS, ninth.JOBS, tenth.JOBS, eleventh.JOBS],
    ids=["fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"],
)
def test_a_set_has_forty_faults_in_eight_jobs(jobs):
    assert len(jobs) == 8
    assert sum(len(job.faults) for job in jobs) == 40


def test_a_module_beside_the_script_may_hold_the_fault():
    job = next(job for job in fifth.JOBS if job.name == "pilot")
    noted = planted(draw(job, next(fault for fault in job.faults if fault.module), 0))
    assert noted.file.endswith("pilot/world.py")
    assert noted.lines


@every_set
def test_a_fifth_of_all_cases_are_controls(jobs):
    every = list(cases(jobs, [0]))
    assert len({case.name for case in every}) == len(every)
    assert 5 * sum(case.fault is None for case in every) >= len(every)


def test_lines_are_noted_of_code_in_the_training_process_only():
    job = next(job for job in first.JOBS if job.hosts)
    link = next(fault for fault in job.faults if fault.link)
    assert planted(draw(job, link, 0)).lines == []
    placed = next(fault for fault in job.faults if fault.placed)
    assert planted(draw(job, placed, 0)).lines


def test_cases_are_chosen_with_the_controls_they_need():
    names = [case.name for case in command.asked_for(cases(first.JOBS, [0]), re.compile("^gpt hog$"))]
    assert names == ["gpt none", "gpt hog"]
    assert command.asked_for(cases(first.JOBS, [0]), re.compile("^$")) == []


def test_recordings_of_another_version_are_not_mixed(tmp_path):
    job = first.JOBS[0]
    case = draw(job, next(fault for fault in job.faults if fault.placed), 0)
    carrying_out.note(case, tmp_path)
    expected = json.loads((tmp_path / carrying_out.NOTE).read_text())
    assert Planted(**expected) == planted(case)
    carrying_out.note(draw(job, case.fault, 1), tmp_path)  # Nothing was recorded yet.
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "run.json").write_text("{}")
    carrying_out.note(draw(job, case.fault, 1), tmp_path)
    with pytest.raises(SystemExit, match="another version"):
        carrying_out.note(case, tmp_path)


@pytest.mark.parametrize(("said_us", "gained_us"), [(1005.0, 1005.0), (1500.0, 1010.0), (500.0, 990.0)])
def test_a_price_is_off_by_what_noise_of_the_cost_does_not_explain(said_us, gained_us):
    planted = truth()
    said = finding("ESP201", saving=said_us) | {"what_if": "loops=0"}
    assert [*Judged(planted, [score(planted, [said])], []).carried_out()] == [
        CarriedOut("cpu", "loops", 5000.0, 5000.0 - said_us, 5000.0 - gained_us)
    ]


def test_a_price_of_a_bound_of_several_terms_or_of_another_cause_or_in_noise_is_no_measure():
    planted = truth()
    leads_to_it = finding(SLOW.second_best[0], saving=900.0) | {"what_if": "communication=0"}
    assert not [*Judged(planted, [score(planted, [leads_to_it])], []).carried_out()]
    for named in ({"what_if": "loops=0", "is_bound": True}, {"what_if": "loops=0,data=0"}, {}):
        said = finding("ESP201", saving=900.0) | named
        assert not [*Judged(planted, [score(planted, [said])], []).carried_out()]
    said = finding("ESP201", saving=900.0) | {"what_if": "loops=0"}
    for noise_us in (None, 2000.0):
        unclear = truth(noise_us=noise_us)
        assert not [*Judged(unclear, [score(unclear, [said])], []).carried_out()]
