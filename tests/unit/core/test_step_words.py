"""Text about steps in the words of blocks and windows."""

import pytest

from esprof.core.step_words import in_words_of


@pytest.mark.parametrize(
    ("text", "block", "window"),
    [
        ("A step takes 61 ms", "A block takes 61 ms", "The window takes 61 ms"),
        ("shorten a step from 3 ms", "shorten a block from 3 ms", "shorten the window from 3 ms"),
        ("blocks the CPU 8 times a step", "blocks the CPU 8 times a block", "blocks the CPU 8 times in the window"),
        ("costs at most 3.00 ms a step", "costs at most 3.00 ms a block", "costs at most 3.00 ms of the window"),
        ("mean of 3 steady-state steps", "mean of 3 blocks", "mean of 3 windows"),
        ("differs from these steps by 1 %.", "differs from these blocks by 1 %.", "differs from the window by 1 %."),
        ("kernels shorten the step. Or", "kernels shorten the block. Or", "kernels shorten the window. Or"),
        ("the CPU limits the step", "the CPU limits the block", "the CPU limits the window"),
    ],
)
def test_steps_are_blocks_or_the_window(text, block, window):
    assert in_words_of("step", text) == text
    assert in_words_of("block", text) == block
    assert in_words_of("window", text) == window


@pytest.mark.parametrize(
    "name", ["ProfilerStep#3", "optimizer.step()", "--stack-steps 2", "step[DECODE bs=3]", "step_fn"]
)
def test_parts_of_names_stay(name):
    assert in_words_of("block", f"look at {name}") == f"look at {name}"
