"""Blocks of traces without steps."""

import pytest

from esprof.run.kineto.reader import read_trace
from tests.cases import serving
from tests.cases.kineto import document, kernel, launch, row, write


@pytest.fixture
def read(tmp_path):
    def of(rows):
        return read_trace(write(tmp_path / "trace.json", document(*rows)))

    return of


def kernels(names, *, since=0, every=100):
    """A launch and its kernel for each name."""
    rows = []
    for number, name in enumerate(names, since):
        rows += [launch(number * every, number), kernel(number * every + 10, number, name=name, dur=50)]
    return rows


def durations(trace):
    return (trace.steps.ints("dur_ns") // 1000).tolist()


def test_a_window_of_repeated_work_is_split_into_blocks(read):
    block = ["embed", *["qkv", "attention", "mlp"] * 4, "sample"]
    # The window begins and ends within a block.
    trace = read(kernels([*block[5:], *block * 4, *block[:7]]))
    (warning,) = trace.warnings
    assert warning.code == "steps-by-block"
    assert "14 pieces" in warning.message
    assert durations(trace) == [1400] * 4


def test_the_layers_of_a_single_pass_are_blocks(read):
    trace = read(kernels(["embed", *["qkv", "attention", "mlp"] * 8, "head"]))
    assert durations(trace) == [300] * 7
    assert "`qkv`" in trace.warnings[0].message


def test_a_kernel_in_a_loop_is_a_block(read):
    assert durations(read(kernels(["gemm"] * 10))) == [100] * 9


def test_decode_steps_in_cuda_graphs_are_blocks_although_their_layers_repeat_more_often(read):
    assert len(read(serving.decode(6, name=None)).steps) == 5


@pytest.mark.parametrize(
    "names", [["a"], ["a", "b", "c", "d"], ["a", "b"] * 2, ["a", *"bcdefgh" * 1, "a", "b", "a", "a"]]
)
def test_work_that_does_not_repeat_makes_no_blocks(read, names):
    trace = read(kernels(names))
    assert trace.steps is None
    assert [warning.code for warning in trace.warnings] == ["no-steps"]


def test_blocks_that_are_launched_ahead_of_the_gpu_are_no_steps(read):
    rows = []
    for number in range(50):
        rows += [launch(30 * number, number), kernel(20 + 200 * number, number, dur=198)]
    trace = read(rows)
    assert trace.steps is None
    (warning,) = trace.warnings
    assert warning.code == "no-steps"
    assert "49 times 1 piece, from `gemm` to the next, 0.20 ms each" in warning.message


def test_a_window_without_gpu_work_has_no_blocks(read):
    trace = read([row("aten::mm", 100 * at) for at in range(10)])
    assert [warning.code for warning in trace.warnings] == ["no-steps"]
