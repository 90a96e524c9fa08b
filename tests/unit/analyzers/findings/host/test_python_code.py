"""ESP402 and ESP403: Python code and garbage collection on all ranks."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, STAGES, Table, table
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, numbered, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000
HOOK, LINE, EMIT = "train.py(9): hook", "train.py(30): main", "python3.11/logging/__init__.py(12): emit"


def rows(gap_ms: float = 20):
    """Six steps of 80 ms and the gap: `aten::mm`, the gap, the backward pass of `aten::add`."""
    long = (80 + gap_ms) * MS
    return [
        row
        for n in range(6)
        for row in (
            step(n, long * n, long * (n + 1)),
            op("aten::mm", long * n, 39 * MS),
            numbered("aten::add", long * n + 39 * MS, MS, n),
            numbered("AddBackward0", long * n + (40 + gap_ms) * MS, 40 * MS, n, forward_thread=1),
        )
    ]


def seen(frame, dur_ms=20.0, call=None, ran=0.0):
    dur_ns = round(dur_ms * NS)
    names = {"before": "aten::add", "after": "AddBackward0", "frame": frame, "call": call}
    return names | {"dur_ns": dur_ns, "cpu_ns": round(ran * dur_ns)}


def found(*stacks_of_ranks, gap_ms=20, stack="train.py(30): main", stages=(), plain=None, sampled=()):
    """Findings on Python code in a job of equal ranks with these stacks."""
    ranks = range(len(stacks_of_ranks))
    run = run_of({rank: rows(gap_ms) for rank in ranks}, stacks=dict(zip(ranks, stacks_of_ranks, strict=True)))
    sampled = sorted([(1, 10, 1, 6, stack), *sampled])
    samples = table(dict(zip(SAMPLES.names, zip(*sampled, strict=True), strict=True)), SAMPLES)
    phases = ["timed"] * 6 + ["stack"]
    steps = step_table([80 + gap_ms] * 7, start_ns=EPOCH_NS, first=0, phase=phases)

    if plain is not None:
        steps = Table(pa.concat_tables([steps.arrow, plain.arrow], promote_options="permissive"))

    def read(name, rank):
        known = {"samples": samples, "steps": steps} | ({"stages": stages[rank]} if stages else {})
        return known.get(name) or run.recorded(name, rank)

    found = ungrouped(Run(run.meta, read))
    msgspec.json.encode(found)
    by_saving = sorted(found, key=lambda finding: -finding.saving_us)
    return [finding for finding in by_saving if finding.id in ("ESP402", "ESP403")]


def test_a_hook_of_a_single_process_is_reported_with_its_line_and_callee():
    (finding,) = found([seen(HOOK, call=EMIT, ran=0.9)])
    assert finding.id == "ESP402"
    assert finding.title == f"Rank 0 spends 20.0 ms a step in {HOOK}, calling {EMIT}"
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)
    assert finding.evidence["source_line"].value == HOOK
    assert finding.evidence["cpu_share"].value == pytest.approx(0.9, abs=0.01)
    assert "Python computes there" in finding.advice
    assert finding.command is not None
    assert r"python[^train\.py\(\d+\): hook( →|$)]=0" in finding.command


def test_a_hook_on_all_ranks_is_reported_once():
    (finding,) = found(*[[seen(HOOK)]] * 3)
    assert finding.ranks == (0, 1, 2)
    assert "slept, or waited" in finding.advice


def test_lines_of_a_function_are_reported_together_and_those_of_the_training_loop_are_not():
    lines = [seen(HOOK, 8), seen("train.py(10): hook", 4), seen(LINE, 5), seen("train.py(31): main", 3)]
    titles = [finding.title for finding in found(lines)]
    assert titles == [
        f"Rank 0 spends 12.0 ms a step in {HOOK}",
        f"Rank 0 spends 5.00 ms a step in {LINE}",
        "Rank 0 spends 3.00 ms a step in train.py(31): main",
    ]


def test_the_line_of_the_training_loop_that_leads_to_the_code_is_named():
    stacks = [(2, 10, 1, 6, f"{LINE}\ntrain.py(50): step\n{HOOK}")]
    (hook,) = found([seen(HOOK)], sampled=stacks)
    assert hook.evidence["called_from"].value == LINE
    (of_loop,) = found([seen(LINE)], sampled=stacks)
    assert "called_from" not in of_loop.evidence


def test_code_of_a_single_rank_is_left_to_the_straggler_rule():
    alone, alike = [seen(HOOK, 12), seen(LINE, 8)], [seen(LINE, 20)]
    assert [finding.title for finding in found(alone, alike, alike)] == [
        f"Ranks 0–2 spend up to 20.0 ms a step in {LINE}"
    ]
    assert found(alone, [seen("a.py(1): f")], [seen("b.py(1): g")]) == []


def collected(*at_ms: float, took_ms: float = 10.0):
    """A garbage collection at each of these times."""
    begin = [EPOCH_NS + round(at * NS) for at in at_ms]
    columns = {"kind": ["stage"] * len(begin), "name": [GARBAGE_COLLECTION] * len(begin), "worker": [-1] * len(begin)}
    return table(columns | {"start_ns": begin, "end_ns": [at + round(took_ms * NS) for at in begin]}, STAGES)


def test_garbage_collections_are_reported_independently_of_their_step():
    # In the third and the fourth of five steps, each in the gap.
    collections = [collected(245, 345), collected(245, took_ms=8)]
    (finding,) = found([], [], stages=collections)
    assert (finding.id, finding.ranks) == ("ESP403", (0, 1))
    assert finding.evidence["per_step"].of(0) == pytest.approx(20 * NS / 5)
    assert finding.evidence["per_step"].of(1) == pytest.approx(8 * NS / 5)
    assert "gc.freeze()" in finding.advice
    assert finding.command is not None
    assert "python[garbage collection]=0" in finding.command


def test_garbage_collection_does_not_count_as_time_of_the_line_where_it_ran():
    (code, garbage) = found([seen(HOOK, 20)], stages=[collected(245, took_ms=15)])
    assert (code.id, garbage.id) == ("ESP402", "ESP403")
    assert code.saving_us == pytest.approx((4 * 20 + 5) * MS / 5, rel=0.01)
    assert garbage.saving_us == pytest.approx(15 * MS / 5, rel=0.01)


def test_collections_of_the_whole_run_are_priced_if_there_are_enough_of_them():
    plain = step_table([100] * 40, start_ns=EPOCH_NS + 1000 * NS, first=10)
    (finding,) = found([], stages=[collected(1245, 2345, 3345, took_ms=20)], plain=plain)
    assert (finding.id, finding.command) == ("ESP403", None)
    assert finding.saving_us == pytest.approx(3 * 20 * MS / 40, rel=0.01)
    # Two may never recur.
    assert found([], stages=[collected(1245, 2345, took_ms=20)], plain=plain) == []


def test_collections_of_loader_workers_do_not_stop_the_rank():
    of_worker = collected(245, 345)
    of_worker = Table(of_worker.arrow.set_column(4, "worker", pa.array([0, 0], pa.int32())))
    assert found([], stages=[of_worker]) == []


def test_collections_in_most_steps_are_reported_in_addition_to_a_few_slow_steps():
    """8 ms in most steps, and 200 ms in three slow ones, which are a small share of the cost."""
    took = np.full(400, 100.0)
    took[[50, 170, 333]] = 300
    plain = step_table(took, start_ns=EPOCH_NS + 1000 * NS, first=10)
    starts = 1000 + np.cumsum(took) - took + 5
    rows = [collected(*starts[took == 100], took_ms=8), collected(*starts[took > 100], took_ms=200)]
    every = Table(pa.concat_tables([one.arrow for one in rows]).sort_by("start_ns"))
    of_all, of_slow = found([], stages=[every], plain=plain)
    assert (of_all.id, of_slow.id) == ("ESP403", "ESP403")
    assert of_all.saving_us == pytest.approx((397 * 8 + 3 * 200) / 400 * MS, rel=0.01)
    assert of_slow.evidence["slow_steps"].value == 3


def test_waiting_for_the_backward_pass_is_not_python_code():
    engine = "python3.11/site-packages/torch/autograd/graph.py(979): _engine_run_backward"
    assert found([seen(LINE, call=engine, ran=0.9)]) == []


def test_a_gap_with_samples_of_waiting_is_not_explained_by_other_gaps():
    waits = "python3.11/site-packages/torch/distributed/distributed_c10d.py(5042): barrier"
    sampled = [
        (EPOCH_NS + round((140 * n + at) * NS), 20 * NS, 0, n, f"{LINE}\n{waits}")
        for n in range(6)
        for at in (60, 80, 100)
    ]
    assert found([seen(HOOK, 1)], gap_ms=60, sampled=sampled) == []


def test_an_unusual_gap_is_explained_by_its_own_samples():
    # Windows with stacks show the hook for 1 ms a step. Here the gap takes 60 ms, and its samples show another line.
    sampled = [(EPOCH_NS + round((140 * n + 60) * NS), 20 * NS, 0, n, "data.py(7): fetch") for n in range(6)]
    sampled += [(EPOCH_NS + round((140 * n + 85) * NS), 25 * NS, 0, n, "data.py(7): fetch") for n in range(6)]
    (finding,) = found([seen(HOOK, 1)], gap_ms=60, sampled=sampled)
    assert finding.evidence["source_line"].value == "data.py(7): fetch"
    assert "slept, or waited" in finding.advice


def test_waiting_for_a_collective_is_not_python_code():
    waits = "python3.11/site-packages/torch/distributed/distributed_c10d.py(4394): all_gather_single"
    assert found([seen(LINE, call=waits, ran=0.2)]) == []
    assert [one.id for one in found([seen(LINE, call=waits, ran=0.9)])] == ["ESP402"]


def test_comprehensions_and_lambdas_belong_to_their_function():
    (finding,) = found([seen(HOOK, 8), seen("train.py(10): hook.<locals>.<genexpr>", 12)])
    assert finding.evidence["per_step"].of(0) == pytest.approx(20 * NS)
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)


def test_calls_of_the_training_loop_are_reported_separately():
    calls = [seen(LINE, 12, call="lib/a.py(3): f"), seen(LINE, 8, call="lib/b.py(4): g")]
    assert [one.evidence["calls"].value for one in found(calls)] == ["lib/a.py(3): f", "lib/b.py(4): g"]


@pytest.mark.parametrize(
    ("stacks", "gap_ms"),
    [([], 20), ([seen(None)], 20), ([seen(HOOK)], 0.15), ([seen(HOOK, 0.5), seen(None, 19.5)], 20)],
)
def test_unknown_and_short_code_is_not_reported(stacks, gap_ms):
    assert found(stacks, gap_ms=gap_ms) == []


def test_names_are_shown_without_control_characters():
    (finding,) = found([seen("a\x1b[2J.py(1): f")])
    assert "\x1b" not in finding.title


def test_of_two_ranks_both_must_spend_the_time():
    assert found([seen(HOOK)], [seen(None)]) == []
    assert [finding.ranks for finding in found([seen(HOOK, 20)], [seen(HOOK, 12), seen(None, 8)])] == [(0, 1)]


@pytest.mark.parametrize(
    "file",
    ["a\\,b.py", "a],b/train.py", "a[1]/train.py", "a b/it's=1,2.py", "C:\\jobs\\train.py", "<string>", "{x}(y)*.py"],
)
@pytest.mark.parametrize("function", ["<lambda>", "Job.<locals>.<listcomp>", "main"])
def test_the_command_matches_any_file_name(file, function):
    (finding,) = found([seen(f"{file}(9): {function}")])
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)


# Steps of the whole run

PLAIN = 40
CALL, STEP = "module.py(1786): Module._call_impl", "optim/adam.py(9): Adam.step"
TORCH = "python3.11/site-packages/torch/"


def found_in_run(*inside, gap_ms=2.0, ran=0.9, ranks=1, ms=40, stages=(), recorded=()):
    """Findings on a hook that leaves a gap of `gap_ms` in the recorded steps.

    Samples of 40 steps of 100 ms without profiler, except the first, show each of the stacks `inside` for `ms`, in two
    samples a step. `recorded` are stacks and times, in ms after the start of each recorded step, at which samples show them.
    """
    plain = step_table([100] * PLAIN, start_ns=EPOCH_NS + 10_000 * NS, first=7)
    begin = plain.ints("start_ns").tolist()
    sampled = [
        (begin[step] + at * NS, ms * NS // 2, ms * NS // 2, 7 + step, stack)
        for stack in inside
        for step in range(1, PLAIN)
        for at in (30, 60)
    ]
    length = 80 + gap_ms
    sampled += [
        (EPOCH_NS + round((length * n + at) * NS), NS, NS, n, stack) for stack, at in recorded for n in range(6)
    ]
    gap = [seen(HOOK, gap_ms, ran=ran)]
    return found(*[gap] * ranks, gap_ms=gap_ms, stack="train.py(30): main", plain=plain, sampled=sampled, stages=stages)


def test_a_function_of_operations_too_short_to_leave_gaps_is_priced_by_the_samples_of_the_run():
    (finding,) = found_in_run(f"{LINE}\n{HOOK}\n{TORCH}_tensor.py(4): item", ranks=2)
    assert finding.saving_us == pytest.approx(40 * MS * (PLAIN - 1) / PLAIN, rel=0.03)
    assert finding.title == f"Ranks 0–1 spend {finding.saving_us / MS:.1f} ms a step in {HOOK}"
    assert finding.command is None
    assert finding.evidence["per_step"].of(0) == 2 * NS
    assert finding.evidence["per_unprofiled_step"].value == round(finding.saving_us * 1_000)


@pytest.mark.parametrize(
    "inside",
    [
        f"{LINE}\n{HOOK}\n{TORCH}nn/modules/{CALL}\nmodel.py(3): Net.forward",  # it calls the model
        f"{LINE}\n{HOOK}\n{TORCH}{STEP}",  # or the optimizer
        f"{LINE}\n{TORCH}nn/modules/{CALL}\nmodel.py(3): Net.forward\n{HOOK}",  # the model calls it
        f"{LINE}\n{TORCH}utils/data/dataloader.py(7): next\n{HOOK}",  # it makes batches
        LINE,  # no samples of it
    ],
)
def test_code_that_belongs_to_the_training_is_priced_by_its_gaps(inside):
    (finding,) = found_in_run(inside)
    assert finding.saving_us == pytest.approx(2 * MS, rel=0.02)
    assert finding.command is not None


def test_garbage_collections_in_a_function_are_not_its_own_time():
    stages = [collected(*(10_000 + 100 * step + at - 19 for step in range(1, PLAIN) for at in (30, 60)), took_ms=18)]
    code, garbage = found_in_run(f"{LINE}\n{HOOK}", gap_ms=1.5, stages=stages)
    assert {code.id, garbage.id} == {"ESP402", "ESP403"}
    assert min(code.saving_us, garbage.saving_us) == pytest.approx(4 * MS, rel=0.05)


def test_a_hook_of_a_module_does_not_belong_to_the_model():
    (finding,) = found_in_run(
        f"{LINE}\n{TORCH}nn/modules/{CALL}\nmodel.py(3): Net.forward\n{TORCH}nn/modules/{CALL}\n{HOOK}"
    )
    assert finding.command is None


def test_a_pause_in_the_window_by_chance_is_priced_by_the_run():
    (finding,) = found_in_run(f"{LINE}\n{HOOK}", gap_ms=50, ran=0.0, ms=10)
    assert finding.saving_us == pytest.approx(10 * MS, rel=0.05)
    # Code that computes holds the GIL, so samples underestimate it.
    (finding,) = found_in_run(f"{LINE}\n{HOOK}", gap_ms=50, ran=0.9, ms=10)
    assert finding.saving_us == pytest.approx(50 * MS, rel=0.01)


def test_half_the_saving_is_certain_if_all_steps_show_the_code():
    (shown,) = found_in_run(f"{LINE}\n{HOOK}", gap_ms=10, ran=0.0, ms=10)
    (unseen,) = found_in_run(LINE, gap_ms=10, ran=0.0)
    assert shown.command is not None
    assert (shown.saving_low_us, unseen.saving_low_us) == (pytest.approx(0.5 * shown.saving_us), 0)


@pytest.mark.parametrize(
    ("stack", "certain"),
    [(f"{LINE}\n{HOOK}", 0.5), (f"{LINE}\n{TORCH}nn/modules/{CALL}\nmodel.py(3): Net.forward\n{HOOK}", 0), (LINE, 0)],
)
def test_half_the_saving_of_code_that_computes_is_certain_if_every_recorded_step_shows_it(stack, certain):
    (computes,) = found([seen(HOOK, 10, ran=0.9)], gap_ms=10, stack=stack)
    assert computes.saving_low_us == pytest.approx(certain * computes.saving_us)


# Samples only

METRIC = "metrics.py(20): Metric.update"
ITEM = f"{TORCH}_tensor.py(4): item"


def found_by_samples(*inside, ms=20, ranks=1, **how):
    return found_in_run(*inside, gap_ms=0.02, ranks=ranks, ms=ms, **how)


def test_a_function_of_many_short_operations_is_reported_although_it_leaves_no_gap():
    (finding,) = found_by_samples(f"{LINE}\ntrainer.py(5): emit\n{METRIC}\n{ITEM}", ranks=2)
    assert (finding.id, finding.command) == ("ESP402", None)
    assert finding.evidence["source_line"].value == METRIC
    assert finding.evidence["calls"].value == ITEM
    assert finding.evidence["cpu_share"].value == 1
    assert finding.evidence["per_step"].of(1) == pytest.approx(20 * NS * (PLAIN - 1) / PLAIN, rel=0.03)
    assert finding.saving_us == pytest.approx(20 * MS * (PLAIN - 1) / PLAIN, rel=0.03)


def test_the_innermost_function_is_reported_at_its_costliest_line():
    emit = f"{LINE}\ntrainer.py(5): emit"
    lines = [
        f"{emit}\n{METRIC}\n{ITEM}",
        f"{emit}\nmetrics.py(22): Metric.update",
        f"{emit}\nmetrics.py(22): Metric.update",
    ]
    (finding,) = found_by_samples(*lines, ms=10)
    assert finding.evidence["source_line"].value == "metrics.py(22): Metric.update"
    one, other = found_by_samples(f"{LINE}\na.py(1): f\nb.py(2): g", f"{LINE}\nc.py(3): h", ms=10)
    assert {one.evidence["source_line"].value, other.evidence["source_line"].value} == {"b.py(2): g", "c.py(3): h"}


@pytest.mark.parametrize(
    ("inside", "ms"),
    [
        (f"{LINE}\n{TORCH}nn/modules/{CALL}\nmodel.py(3): Net.forward", 20),
        (f"{LINE}\n{TORCH}utils/data/dataloader.py(7): next\ndata.py(4): Set.__getitem__", 20),
        (f"{LINE}\nstep.py(4): step\n{TORCH}{STEP}", 20),
        (f"{LINE}\n{METRIC}\n{ITEM}", 2),  # too short
        (LINE, 20),  # the training loop itself
    ],
)
def test_training_code_and_short_code_are_not_reported_from_samples(inside, ms):
    assert found_by_samples(inside, ms=ms) == []


LOSS = f"{LINE}\n{METRIC}\n{TORCH}functional.py(3): cdist"
WITHOUT_GRADIENT, WITH_GRADIENT = 20, 39.5


def test_work_on_tensors_is_reported_if_it_has_no_gradient():
    (finding,) = found_by_samples(LOSS, recorded=[(LOSS, WITHOUT_GRADIENT)])
    assert finding.evidence["source_line"].value == METRIC
    assert finding.advice.startswith("It computes on tensors, outside the model's forward pass and without a gradient.")
    assert found_by_samples(LOSS, recorded=[(LOSS, WITH_GRADIENT)]) == []
    (python,) = found_by_samples(LOSS)
    assert "tensors, outside" not in python.advice


def test_a_line_of_the_training_loop_is_reported_if_it_is_known_to_have_no_gradient():
    inline = f"{LINE}\n{TORCH}functional.py(3): cdist"
    (finding,) = found_by_samples(inline, recorded=[(inline, WITHOUT_GRADIENT)])
    assert finding.evidence["source_line"].value == LINE
    assert found_by_samples(inline, recorded=[(inline, WITH_GRADIENT)]) == []
    assert found_by_samples(inline) == []
    clipped = f"{LINE}\n{TORCH}nn/utils/clip_grad.py(30): clip_grad_norm_"
    assert found_by_samples(clipped, recorded=[(clipped, WITHOUT_GRADIENT)]) == []


def test_code_of_slow_steps_is_left_to_the_rule_for_recurring_steps():
    took = np.where(np.arange(PLAIN) % 4 == 3, 200, 100)
    plain = step_table(took, start_ns=EPOCH_NS + 10_000 * NS, first=7)
    begin = plain.ints("start_ns").tolist()
    sampled = [(begin[at] + 90 * NS, 80 * NS, 80 * NS, 7 + at, METRIC) for at in range(3, PLAIN, 4)]
    assert found([], plain=plain, sampled=sampled) == []
