"""ESP403, ESP601, ESP806 and ESP807: slow steps that recur."""

import itertools

import msgspec
import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.findings.checkpoint.recurring_steps import RULE
from esprof.analyzers.recorded_job import RecordedJob
from esprof.run.run import Run
from esprof.run.schema import EVENTS, SAMPLES, STAGES, table
from tests.cases.step_runs import meta, step_table

MS = 1_000_000


def job(*step_ms, stages=(), phase="plain", loader_wait_ms=None) -> Run:
    """A Run with these steps on each rank, and `stages` (rank, name, step, ms), each at the start of its step."""
    extra = {} if loader_wait_ms is None else {"loader_wait_ns": [round(ms * MS) for ms in loader_wait_ms]}
    steps = [step_table(ms, phase=phase, first=1, **extra) for ms in step_ms]
    marked = {}
    for rank, name, step, took_ms in stages:
        start = int(steps[rank].ints("start_ns")[step - 1]) + MS
        row = {"kind": "stage", "name": name, "pid": 7, "start_ns": start, "end_ns": start + took_ms * MS}
        marked.setdefault(rank, []).append(row)
    tables = {
        rank: table({name: [row.get(name) for row in rows] for name in STAGES.names}, STAGES)
        for rank, rows in marked.items()
    }

    def read(name, rank):
        return {"steps": steps[rank], "stages": tables.get(rank), "events": table({}, EVENTS)}.get(name)

    return Run(meta(len(steps)), read)


def every(k: int, n: int = 41, slow_ms: float = 400, usual_ms: float = 100, seed: int = 0):
    """Steps of 100 ms, the k-th, 2k-th, … of which take 400 ms."""
    noise = np.random.default_rng(seed).normal(0, 1, n)
    return np.where(np.arange(1, n + 1) % k == 0, slow_ms, usual_ms) + noise


def found(run: Run):
    causes = list(RULE.of_job(RecordedJob(run)))
    msgspec.json.encode([cause.evidence for cause in causes])
    return causes


def test_saves_are_reported_with_their_rank_and_priced_by_the_means():
    saves = [(0, "torch.save", step, 300) for step in range(4, 42, 4)]
    (finding,) = diagnose(job(every(4), every(4, seed=1), stages=saves)).findings
    assert (finding.id, finding.ranks, finding.confidence) == ("ESP601", (0,), "high")
    assert finding.title.startswith("One step in 4 takes ")
    assert finding.title.endswith(": rank 0 spends the extra time in torch.save")
    assert finding.saving_us == pytest.approx(75_000, abs=2_000)
    assert finding.saving_low_us <= finding.saving_us <= finding.saving_high_us
    assert finding.saving_pct == pytest.approx(100 * 75 / 175, abs=1)
    assert finding.evidence["lost_there"].of(0) == pytest.approx(300 * MS, rel=0.01)


def test_the_margin_includes_the_uncertainty_of_the_number_of_slow_steps():
    slow_ms = np.where(np.isin(np.arange(1, 42), [7, 12, 23, 26, 38]), 400, 100) + 0.0
    stages = [(0, "validate", step, 290) for step in (7, 12, 23, 26, 38)]
    (cause,) = found(job(slow_ms, stages=stages))
    assert cause.measured.saving_ns == pytest.approx(300 * MS * 5 / 40, rel=1e-6)
    assert cause.measured.margin_ns == pytest.approx(2 * 300 * MS * np.sqrt(1 / 8 * 7 / 8 / 40), rel=0.05)


def test_the_throughput_covers_all_steps():
    diagnosis = diagnose(job(every(4)))
    assert diagnosis.throughput.steps_per_s == pytest.approx(1 / 0.175, rel=0.03)
    assert diagnosis.step_us == pytest.approx(175_000, rel=0.03)


def test_a_stage_that_the_job_marked_is_reported():
    (cause,) = found(job(every(5), stages=[(0, "validate", step, 290) for step in range(5, 42, 5)]))
    assert cause.id == "ESP806"
    assert cause.title.endswith("rank 0 spends the extra time in validate")


def test_a_stage_of_all_steps_is_not_the_cause():
    stages = [(0, "forward", step, 50) for step in range(1, 42)]
    (cause,) = found(job(every(5), stages=stages))
    assert (cause.id, cause.confidence) == ("ESP806", "medium")
    assert "forward" not in cause.title
    assert "lost_there" not in cause.evidence


def test_waiting_for_the_loader_is_reported():
    wait = every(6, slow_ms=310, usual_ms=10)
    (cause,) = found(job(every(6), loader_wait_ms=wait))
    assert cause.title.endswith("spends the extra time waiting for the data loader")


def test_windows_hide_some_of_the_slow_steps():
    phase = ["timed" if 11 <= step <= 20 else "plain" for step in range(1, 62)]
    (cause,) = found(job(every(4, n=61), phase=phase))
    assert cause.evidence["when"].value == "every 4 steps"


@pytest.mark.parametrize(
    "step_ms",
    [
        np.where(np.isin(np.arange(1, 17), [3, 7, 13, 15]), 400, 100),
        every(4, n=12),
        every(4, slow_ms=120),
        every(1000),
        every(4, slow_ms=100),
        np.where(np.isin(np.arange(60), [3, 9, 11, 20, 37, 41, 58]), 400, 100),
        np.where((np.arange(60) > 40) & (np.arange(60) < 50), 400, 100),
        [100.0],
        [],
    ],
    ids=[
        "some of eight",
        "few",
        "hardly slower",
        "never",
        "alike",
        "at random",
        "a short series",
        "one step",
        "none",
    ],
)
def test_other_slow_steps_are_not_reported(step_ms):
    assert found(job(step_ms)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(12, 0.3), (20, 0.2), (30, 0.15), (100, 1 / 8)])
def test_randomly_slow_steps_have_no_period(n, share):
    rng = np.random.default_rng(5)
    runs = [np.where(rng.random(n) < share, 400.0, 100.0) for _ in range(300)]
    assert sum(bool(found(job(run))) for run in runs) <= 3


def test_a_save_within_a_stage_of_the_job_is_reported():
    stages = [
        (0, name, step, ms) for step in range(4, 42, 4) for name, ms in (("checkpoint", 300), ("torch.save", 290))
    ]
    (cause,) = found(job(every(4), stages=stages))
    assert cause.id == "ESP601"


def test_a_saving_whose_interval_contains_zero_is_uncertain():
    slow = every(4, n=17)
    slow[11] = 5_000
    stages = [(0, "torch.save", step, 40) for step in (4, 8, 16)] + [(0, "torch.save", 12, 4_900)]
    slow[[3, 7, 15]] = 140
    diagnosis = diagnose(job(slow, stages=stages))
    (finding,) = diagnosis.uncertain
    assert (finding.saving_low_us, diagnosis.findings) == (0, ())


# Evidence from stacks


MAIN, SAVE, WAIT = "train.py(30): main", "train.py(52): main", "train.py(31): main"
BACKWARD = "python3.11/site-packages/torch/autograd/graph.py(9): _engine_run_backward"


def sampled(run: Run, *stacks_of_ranks) -> Run:
    """The run with samples: `stacks_of_ranks` are functions (step, duration ns) -> [(stack, ns)], one for each rank."""
    tables = {}
    for rank, stacks in enumerate(stacks_of_ranks):
        steps = run.steps(rank)
        rows = [
            {"at_ns": start + dur, "dur_ns": ns, "cpu_ns": 0, "step": step, "stack": stack}
            for step, start, dur in zip(*(steps.ints(c).tolist() for c in ("step", "start_ns", "dur_ns")), strict=True)
            for stack, ns in stacks(step, dur)
        ]
        tables[rank] = table({name: [row[name] for row in rows] for name in SAMPLES.names}, SAMPLES)

    def read(name, rank):
        return tables[rank] if name == "samples" else run.recorded(name, rank)

    return Run(run.meta, read)


def extra_time(usual: str, slow: str, k: int = 5):
    """Samples that show `usual` for 100 ms of each step, and `slow` for the extra time of every k-th step."""

    def stacks(step, dur):
        extra = dur - 100 * MS if step % k == 0 else 0
        return [(usual, dur - extra), *([(slow, extra)] if extra > 0 else [])]

    return stacks


def test_a_line_of_slow_steps_only_is_reported_with_its_callee():
    evaluate = f"{SAVE}\neval.py(7): evaluate\nmodel.py(3): Model.forward"
    (cause,) = found(sampled(job(every(5)), extra_time(f"{MAIN}\nmodel.py(3): Model.forward", evaluate)))
    assert (cause.id, cause.confidence) == ("ESP806", "high")
    assert cause.title.endswith(f": rank 0 spends the extra time in {SAVE}, calling eval.py(7): evaluate")
    assert cause.evidence["source_line"].value == f"{SAVE}, calling eval.py(7): evaluate"
    assert cause.evidence["innermost"].value == "model.py(3): Model.forward"
    assert cause.evidence["lost_there"].of(0) == pytest.approx(300 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("function", "id"),
    [
        ("save_checkpoint", "ESP601"), ("Trainer._save", "ESP601"), ("Job.dump", "ESP601"), ("saved_tensors_hook", "ESP806"),
        ("unsaveable", "ESP806"), ("get_model_state_dict", "ESP601"), ("load_state_dict", "ESP806"),
    ],
)  # fmt: skip
def test_functions_are_recognised_as_saves_by_their_names(function, id):
    stack = f"{SAVE}\nio.py(7): {function}\npython3.11/pickle.py(9): Pickler.write"
    (cause,) = found(sampled(job(every(5)), extra_time(MAIN, stack)))
    assert cause.id == id


def test_the_state_of_sharded_ranks_that_torch_gathers_is_part_of_a_save():
    gathers = "python3.11/site-packages/torch/distributed/checkpoint/state_dict.py(9): get_model_state_dict"
    (cause,) = found(sampled(job(every(5)), extra_time(MAIN, f"{SAVE}\n{gathers}")))
    assert cause.id == "ESP601"


def in_three_lines(innermost: str):
    """Samples that show 100 ms of each step in `MAIN`, and the extra time of every fifth step in three lines behind it, a
    third each; the last one calls `innermost`."""

    def stacks(step, dur):
        extra = (dur - 100 * MS) // 3 if step % 5 == 0 else 0
        lines = ["train.py(51): main", SAVE, f"train.py(53): main\n{innermost}"]
        return [(MAIN, dur - 3 * extra), *((line, extra) for line in lines if extra > 0)]

    return stacks


@pytest.mark.parametrize(
    ("innermost", "id"), [("io.py(7): save_checkpoint", "ESP601"), ("metrics.py(7): evaluate", "ESP806")]
)
def test_several_lines_of_a_function_that_slow_steps_alone_run_are_one_cause(innermost, id):
    (cause,) = found(sampled(job(every(5)), in_three_lines(innermost)))
    assert (cause.id, cause.confidence) == (id, "high")
    assert cause.evidence["source_line"].value == "train.py(51): main"
    assert cause.evidence["lines_around"].value == f"{SAVE}; train.py(53): main"
    assert cause.title.endswith(": rank 0 spends the extra time in train.py(51): main and lines around it")
    assert cause.evidence["lost_there"].of(0) == pytest.approx(300 * MS, rel=0.05)


def test_lines_that_usual_steps_run_too_are_no_cause():
    def stacks(step, dur):
        return [(line, dur // 3) for line in ("train.py(51): main", SAVE, "train.py(53): main")]

    (cause,) = found(sampled(job(every(5)), stacks))
    assert "source_line" not in cause.evidence


def test_the_decorator_of_a_function_is_not_shown_as_what_a_line_calls():
    decorated = "python3.11/site-packages/torch/utils/_contextlib.py(124): context_decorator.<locals>.decorate_context"
    stack = f"{SAVE}\n{decorated}\neval.py(7): evaluate"
    (cause,) = found(sampled(job(every(5)), extra_time(MAIN, stack)))
    assert cause.evidence["source_line"].value == f"{SAVE}, calling eval.py(7): evaluate"


def test_a_picture_that_is_saved_is_no_checkpoint():
    stack = f"{SAVE}\ndraw.py(7): draw\npython3.11/site-packages/PIL/Image.py(9): Image.save"
    (cause,) = found(sampled(job(every(5)), extra_time(MAIN, stack)))
    assert cause.id == "ESP806"


def test_a_rank_that_waits_where_it_always_waits_is_not_listed():
    saving, waiting = (
        extra_time(MAIN, f"{SAVE}\nio.py(7): save"),
        extra_time(f"{WAIT}\n{BACKWARD}", f"{WAIT}\n{BACKWARD}"),
    )
    (cause,) = found(sampled(job(every(5), every(5, seed=1)), waiting, saving))
    assert (cause.id, cause.ranks) == ("ESP601", (1,))


def test_the_title_contains_a_long_source_location_completely():
    location = f"site-packages/{'deep/' * 40}precision.py(110): Precision.{'_wrap' * 20}_closure"
    (cause,) = found(sampled(job(every(5)), extra_time(MAIN, f"{MAIN}\n{location}")))
    assert cause.title.endswith(f" spends the extra time in {location}")


def test_randomly_slow_steps_are_reported_if_a_line_explains_them():
    slow = (7, 9, 18, 33)
    steps = np.where(np.isin(np.arange(1, 42), slow), 500.0, 100.0)

    def stacks(step, dur):
        return [(MAIN, 100 * MS), *([(f"{MAIN}\na.py(1): retry", dur - 100 * MS)] if step in slow else [])]

    run = job(steps)
    assert found(run) == []
    (cause,) = found(sampled(run, stacks))
    assert (cause.id, cause.evidence["when"].value) == ("ESP807", "now and then")
    assert (
        cause.title == "4 of 40 steps take 500.0 ms instead of 100.0 ms: rank 0 spends the extra time in a.py(1): retry"
    )


def test_a_line_that_is_slow_in_one_of_the_random_steps_explains_none():
    took = {7: 200.0, 9: 200.0, 18: 200.0, 33: 900.0}
    steps = np.array([took.get(step, 100.0) for step in range(1, 42)])

    def stacks(step, dur):
        return [(MAIN, 100 * MS), *([(f"{MAIN}\na.py(1): retry", dur - 100 * MS)] if step == 33 else [])]

    assert found(sampled(job(steps), stacks)) == []


def test_the_first_steps_of_epochs_are_a_group_of_their_own():
    begins = (11, 23, 31)
    steps = np.where(np.isin(np.arange(1, 42), begins), 300.0, 100.0)
    wait = np.where(np.isin(np.arange(1, 42), begins), 201.0, 1.0)
    run = job(steps, loader_wait_ms=wait)
    starts = run.steps(0).ints("start_ns")
    epoch_of = np.searchsorted((1, *begins), np.arange(1, 42), side="right") - 1
    nexts = [
        {"kind": "next", "loader": int(epoch), "batch": 0, "start_ns": int(start), "end_ns": int(start) + MS}
        for epoch, start in zip(epoch_of, starts, strict=True)
    ]
    stages = table({name: [row.get(name) for row in nexts] for name in STAGES.names}, STAGES)
    (cause,) = found(Run(run.meta, lambda name, rank: stages if name == "stages" else run.recorded(name, rank)))
    assert (cause.id, cause.evidence["when"].value) == ("ESP807", "where an epoch begins")
    assert cause.title.startswith(
        "The first step of an epoch takes 300.0 ms instead of 100.0 ms: rank 0 spends the extra time waiting"
    )


def test_a_validation_that_meets_the_starts_of_epochs_is_one_group():
    validation = every(5, n=61)
    (cause,) = found(epochs(job(validation), 15, 30, 45, 60))
    assert (cause.id, cause.evidence["when"].value) == ("ESP806", "every 5 steps")


@pytest.mark.parametrize("slow", [{15: 900, 30: 900, 45: 900, 60: 900}, {16: 400, 31: 400, 46: 400}])
def test_starts_of_epochs_that_are_slower_or_at_other_steps_are_a_group_of_their_own(slow):
    step_ms = every(5, n=61)
    step_ms[[step - 1 for step in slow]] = [*slow.values()]
    assert [cause.id for cause in found(epochs(job(step_ms), *slow))].count("ESP807") == 1


def test_compilation_in_the_first_steps_is_not_reported():
    slow = np.where(np.isin(np.arange(1, 200), (2, 3, 5)), 5_000.0, 100.0)

    def compiling(step, dur):
        return [(MAIN, 100 * MS), *([(f"{MAIN}\ncompile.py(1): compile", dur - 100 * MS)] if dur > 1_000 * MS else [])]

    assert found(sampled(job(slow), compiling)) == []


def test_a_long_series_of_slow_steps_is_reported_with_its_first_and_last_step():
    (cause,) = found(job(np.where(np.arange(60) > 40, 400, 100)))
    assert (cause.id, cause.confidence) == ("ESP807", "medium")
    assert cause.title == "Steps 42 to 60 take 400.0 ms instead of 100.0 ms"


def test_a_short_series_is_reported_if_its_cause_is_known():
    step_ms = np.where((np.arange(60) > 40) & (np.arange(60) < 46), 400, 100)
    (cause,) = found(job(step_ms, stages=[(0, "validate", step, 290) for step in range(42, 47)]))
    assert cause.title == "Steps 42 to 46 take 400.0 ms instead of 100.0 ms: rank 0 spends the extra time in validate"


def test_other_slow_steps_do_not_hide_a_period():
    step_ms = every(9, n=60)
    step_ms[[3, 11, 20, 21, 22, 33, 40, 47, 55]] = 150
    periodic = next(cause for cause in found(job(step_ms)) if cause.id == "ESP806")
    assert periodic.title.startswith("One step in 9 takes ")


def test_ranks_with_more_cpu_time_are_reported_without_other_evidence():
    step_ms = np.where(np.arange(60) > 40, 400, 100)
    ran = [[round(ms * MS) for ms in step_ms], [90 * MS] * 60]
    steps = [step_table(step_ms, first=1, cpu_ns=one) for one in ran]
    run = Run(meta(2), lambda name, rank: {"steps": steps[rank], "events": table({}, EVENTS)}.get(name))
    (cause,) = found(run)
    assert cause.title.endswith(": rank 0 spends the extra time computing on its CPU")
    assert cause.evidence["lost_there"].of(0) == pytest.approx(300 * MS)


def test_steps_that_garbage_collection_makes_slow_are_reported_as_such():
    stages = [(0, "garbage collection", step, 290) for step in range(5, 42, 5)]
    (cause,) = found(job(every(5), stages=stages))
    assert cause.id == "ESP403"
    assert "gc.freeze()" in cause.advice


@pytest.mark.parametrize(("what", "is_certain"), [("garbage collection", True), ("validate", False)])
def test_three_collections_that_the_job_calls_are_certain_and_have_their_line(what, is_certain):
    """Each was timed; of other work only the steps in which it happened were."""
    slow = (11, 22, 35)
    step_ms = np.where(np.isin(np.arange(1, 45), slow), 220.0, 100.0)
    run = job(step_ms, stages=[(0, what, step, 115) for step in slow])
    diagnosis = diagnose(sampled(run, lambda step, dur: [(SAVE, dur)]))
    (finding,) = diagnosis.findings or diagnosis.uncertain
    assert (finding.id, finding.is_saving) == ("ESP403" if is_certain else "ESP807", is_certain)
    assert finding.title.endswith(f"in garbage collection, at {SAVE}") == is_certain
    assert ("source_line" in finding.evidence) == is_certain
    assert ("gc.collect()" in finding.advice) == is_certain


def epochs(run: Run, *first_steps: int) -> Run:
    """`run` with a new pass over a DataLoader that starts in each of these steps."""
    steps = run.steps(0)
    start = steps.ints("start_ns")
    rows = [
        {"kind": "next", "loader": number, "worker": -1, "start_ns": start[at] + 1, "end_ns": start[at] + 2}
        for number, (begin, end) in enumerate(itertools.pairwise([1, *first_steps, len(steps) + 1]))
        for at in range(begin - 1, end - 1)
    ]
    stages = table({name: [row.get(name) for row in rows] for name in STAGES.names}, STAGES)
    return Run(run.meta, lambda name, rank: stages if name == "stages" else run.recorded(name, rank))


def test_a_single_slow_epoch_is_reported_if_the_job_waited_for_its_loader():
    step_ms = np.where(np.arange(1, 42) == 20, 2_000, 100)
    waited = job(step_ms, loader_wait_ms=np.where(step_ms > 100, 1_900, 5))
    (cause,) = found(epochs(waited, 20))
    assert (cause.id, cause.confidence) == ("ESP807", "medium")
    assert cause.title.startswith("The first step of an epoch takes 2,000 ms")
    assert found(epochs(job(step_ms), 20)) == []
