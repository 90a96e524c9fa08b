"""The table of operations of synthetic runs, in µs."""

import re

import msgspec
import pytest

from esprof.analyzers.ops.over_ranks import Asked, ops_run
from esprof.core.errors import InputError, UsageError
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.graph import EPOCH_NS, MAIN, Args, Row, call, gloo, kernel, launched, op, python, run_of, step


def shaped(name, start, dur, dims):
    args = Args(dims=msgspec.Raw(dims.encode()))
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=MAIN, ts=start, dur=dur, args=args)


def marked(name, start, dur):
    return Row(ph="X", cat="user_annotation", name=name, pid=100, tid=MAIN, ts=start, dur=dur)


def answer(*ranks, **asked):
    return ops_run(run_of(dict(enumerate(ranks))), Asked(**asked))


def by_name(found):
    assert len({one.name for one in found.ops}) == len(found.ops)
    return {one.name: one for one in found.ops}


def two_steps(slow=0):
    """Two steps of 100 µs: a linear of 30 + `slow` µs encloses a product of 10 + `slow` µs, twice in the second step."""
    rows = [step(1, 0, 100), step(2, 100, 200)]
    for begin in (0, 100, 140):
        rows += [op("aten::linear", begin, 30 + slow), op("aten::addmm", begin + 5, 10 + slow)]
    return rows


def with_gpu():
    """A convolution that launches three kernels; its enclosing range launches one more; one is outside of operations."""
    return [
        step(1, 0, 1_000),
        marked("forward", 10, 300),
        op("aten::conv2d", 20, 100),
        op("aten::cudnn_convolution", 30, 80),
        *launched("sgemm", 40, 60, 100, 1),
        *launched("sgemm", 50, 170, 50, 2),
        *launched("scale", 60, 230, 25, 3, stream=9),
        *launched("own_kernel", 200, 300, 10, 4),
        *launched("nobody", 500, 600, 40, 5),
        kernel("launched before the window", 0, 500, 99),
    ]


def test_own_and_total_time_of_a_mean_step():
    found = by_name(answer(two_steps()))
    linear, addmm = found["aten::linear"], found["aten::addmm"]
    assert (linear.calls, linear.own_cpu_us, linear.total_cpu_us) == (1.5, 30.0, 45.0)
    assert (addmm.calls, addmm.own_cpu_us, addmm.total_cpu_us) == (1.5, 15.0, 15.0)
    assert linear.share_pct == pytest.approx(100 * 2 / 3, abs=1e-3)


def test_the_result_states_ranks_steps_and_totals():
    found = answer(two_steps(), two_steps())
    assert (found.ranks, found.steps, found.step_us, found.has_gpu) == ((0, 1), (1, 2), 100.0, False)
    assert (found.sort, found.found, found.cpu_us, found.gpu_us) == ("own-cpu", 2, 45.0, 0.0)


def test_only_steady_state_steps_count():
    rows = [step(number, 100 * number, 100 * number + 100) for number in range(5)]
    rows += [op("aten::first", 10, 50), *(op("aten::mm", 100 * number + 10, 20) for number in range(1, 5))]
    found = answer(rows)
    assert found.steps == (1, 2, 3, 4)
    assert [one.name for one in found.ops] == ["aten::mm"]


def test_calls_are_clipped_to_the_steps():
    rows = [step(number, 100 * number, 100 * number + 100) for number in range(5)]
    rows += [marked("epoch", 50, 300), *(op("aten::mm", 100 * number + 10, 20) for number in range(1, 5))]
    epoch = by_name(answer(rows))["epoch"]
    # Steps 1 to 4 start at 100 µs and so contain 250 µs of the range.
    assert (epoch.calls, epoch.total_cpu_us, epoch.own_cpu_us) == (0.0, 250 / 4, (250 - 3 * 20) / 4)


def test_recursion_counts_total_time_once():
    rows = [step(1, 0, 100), op("aten::to", 0, 50), op("aten::copy_", 10, 35), op("aten::to", 20, 20)]
    found = by_name(answer(rows))
    assert (found["aten::to"].calls, found["aten::to"].total_cpu_us, found["aten::to"].own_cpu_us) == (2, 50, 35)
    assert found["aten::copy_"].own_cpu_us == 15


def test_an_operation_that_only_calls_an_overload_of_itself_is_one_call():
    rows = [step(1, 0, 100), op("aten::mean", 0, 30), op("aten::mean", 5, 20), op("aten::sum", 10, 5)]
    mean = by_name(answer(rows))["aten::mean"]
    assert (mean.calls, mean.total_cpu_us, mean.own_cpu_us) == (1, 30, 25)


def test_kernels_belong_to_the_innermost_operation_that_launched_them():
    found = answer(with_gpu())
    assert found.sort == "own-gpu"
    assert (found.gpu_us, found.gpu_outside_us) == (225.0, 40.0)
    assert [(one.name, one.own_gpu_us, one.total_gpu_us) for one in found.ops] == [
        ("aten::cudnn_convolution", 175.0, 175.0),
        ("forward", 10.0, 185.0),
        ("aten::conv2d", 0.0, 175.0),
        ("cudaLaunchKernel", 0.0, 0.0),
    ]
    convolution = found.ops[0]
    assert [(one.name, one.calls, one.us) for one in convolution.kernels] == [("sgemm", 2, 150), ("scale", 1, 25)]
    assert convolution.kernels_found == 2
    assert convolution.share_pct == pytest.approx(100 * 175 / 225, abs=1e-3)


def test_driver_calls_are_separate_rows():
    found = by_name(answer(with_gpu()))
    assert (found["cudaLaunchKernel"].calls, found["cudaLaunchKernel"].own_cpu_us) == (5, 25)
    assert found["aten::cudnn_convolution"].own_cpu_us == 80 - 3 * 5


def test_a_launch_with_the_duration_of_its_operation_is_inside_it():
    rows = [step(1, 0, 100), call("cudaLaunchKernel", 10, 5, 1), op("aten::relu_", 10, 5), kernel("relu", 20, 30, 1)]
    assert by_name(answer(rows))["aten::relu_"].own_gpu_us == 30


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("own-gpu", "aten::cudnn_convolution"),
        ("total-gpu", "forward"),
        ("own-cpu", "forward"),
        ("total-cpu", "forward"),
        ("calls", "cudaLaunchKernel"),
    ],
)
def test_rows_have_the_requested_order(sort, first):
    assert answer(with_gpu(), sort=sort).ops[0].name == first


def test_sorting_by_an_unused_gpu_is_rejected():
    with pytest.raises(UsageError, match="no work on a GPU") as error:
        answer(two_steps(), sort="own-gpu")
    assert "own-cpu" in error.value.remedy


def test_ranks_are_averaged_and_an_outlier_is_named():
    found = answer(two_steps(), two_steps(), two_steps(slow=10))
    addmm = by_name(found)["aten::addmm"]
    assert [(rank.rank, rank.own_cpu_us) for rank in addmm.by_rank] == [(0, 15.0), (1, 15.0), (2, 30.0)]
    assert addmm.own_cpu_us == 20.0
    assert addmm.differs == 2
    assert by_name(found)["aten::linear"].differs is None


def test_a_missing_operation_counts_as_zero():
    rows = [*two_steps(), op("aten::extra", 50, 20)]
    extra = by_name(answer(two_steps(), rows))["aten::extra"]
    assert [rank.calls for rank in extra.by_rank] == [0.0, 0.5]
    assert (extra.own_cpu_us, extra.differs) == (5.0, 1)


def test_a_single_rank_can_be_selected():
    found = answer(two_steps(), two_steps(slow=10), rank=1)
    assert found.ranks == (1,)
    assert by_name(found)["aten::addmm"].own_cpu_us == 30.0


def test_an_unknown_rank_is_rejected():
    with pytest.raises(UsageError, match="no rank 7") as error:
        answer(two_steps(), two_steps(), rank=7)
    assert "ranks 0–1" in error.value.remedy


def test_rows_can_be_limited_and_filtered():
    found = answer(with_gpu(), top=1, pattern=re.compile("conv"))
    assert (found.found, [one.name for one in found.ops]) == (2, ["aten::cudnn_convolution"])
    assert found.gpu_us == 225.0


def test_shapes_are_listed_and_split_rows_on_request():
    rows = [
        step(1, 0, 100),
        shaped("aten::mm", 0, 10, "[[8, 4], [4, 2]]"),
        shaped("aten::mm", 10, 20, "[[8, 4], [4, 2]]"),
        shaped("aten::mm", 30, 5, "[[1, 4], [4, 2]]"),
        shaped("aten::zero_", 40, 5, "[]"),
    ]
    mm = by_name(answer(rows))["aten::mm"]
    assert [(one.shapes, one.calls) for one in mm.inputs] == [("[[8, 4], [4, 2]]", 2), ("[[1, 4], [4, 2]]", 1)]
    assert (mm.shapes, mm.inputs_found) == (None, 2)
    apart = answer(rows, by_shape=True)
    assert [(one.name, one.shapes, one.own_cpu_us) for one in apart.ops] == [
        ("aten::mm", "[[8, 4], [4, 2]]", 30),
        ("aten::mm", "[[1, 4], [4, 2]]", 5),
        ("aten::zero_", None, 5),
    ]
    assert apart.shapes_recorded
    assert not answer(two_steps(), by_shape=True).shapes_recorded


def test_modules_are_rows_but_other_frames_are_not():
    rows = [
        step(1, 0, 100),
        python("nn.Module: Linear_0", 0, 60),
        python("torch/nn/modules/module.py(1500): _call_impl", 2, 56),
        op("aten::linear", 10, 40),
    ]
    found = by_name(answer(rows))
    assert set(found) == {"Linear_0", "aten::linear"}
    module = found["Linear_0"]
    assert (module.kind, module.total_cpu_us, module.own_cpu_us) == ("module", 60, 20)


def test_collectives_on_gloo_threads_are_rows():
    found = by_name(answer([step(1, 0, 100), op("aten::mm", 0, 10), *gloo(20, 25, 85)]))
    assert (found["gloo:all_reduce"].kind, found["gloo:all_reduce"].own_cpu_us) == ("collective", 60)


def test_the_source_location_is_the_innermost_recorded_frame_of_the_job():
    rows = [
        step(1, 0, 100),
        python("train.py(7): main", 0, 100),
        python("model.py(3): forward", 10, 50),
        python("torch/nn/functional.py(9): linear", 12, 40),
        op("aten::linear", 15, 30),
        op("aten::addmm", 20, 20),
        op("aten::mean", 70, 10),
    ]
    found = by_name(answer(rows))
    call_sites = {name: [site.frame for site in one.places] for name, one in found.items()}
    assert call_sites == {
        "aten::linear": ["model.py(3): forward"],
        "aten::addmm": ["model.py(3): forward"],
        "aten::mean": ["train.py(7): main"],
    }


def sampled(rows, samples):
    """A run of one rank with `samples`: (start in µs, duration in µs, frames from the outermost)."""
    run = run_of({0: rows})
    columns = {
        "at_ns": [EPOCH_NS + at * 1_000 for at, _, _ in samples],
        "dur_ns": [dur * 1_000 for _, dur, _ in samples],
        "stack": ["\n".join(frames) for _, _, frames in samples],
    }
    tables = {"events": run.events(0), "samples": table(columns, SAMPLES)}
    return Run(run.meta, lambda name, rank: tables.get(name))


def test_the_source_location_is_the_sampled_line():
    main, library = "train.py(7): main", "python3.11/site-packages/torch/nn/functional.py(9): linear"
    rows = [step(1, 0, 100), op("aten::linear", 10, 40), op("aten::linear", 12, 30), op("aten::relu", 60, 20)]
    samples = [
        (5, 5, [main, "model.py(1): before"]),
        (20, 15, [main, "model.py(3): forward", library]),
        (40, 5, [main, "model.py(4): forward"]),
        (70, 10, [library]),
        (500, 10, [main]),
    ]
    found = by_name(ops_run(sampled(rows, samples)))
    assert [(site.frame, site.share_pct) for site in found["aten::linear"].places] == [
        ("model.py(3): forward", 75.0),
        ("model.py(4): forward", 25.0),
    ]
    assert found["aten::relu"].places == ()


def test_a_run_without_a_window_is_rejected_with_a_remedy():
    run = run_of({0: [step(1, 0, 100), op("aten::mm", 0, 10)]})
    empty = run.events(0).where(run.events(0).is_kind("kernel"))
    with pytest.raises(InputError, match="no window was recorded"):
        ops_run(Run(run.meta, lambda name, rank: empty if name == "events" else None))
