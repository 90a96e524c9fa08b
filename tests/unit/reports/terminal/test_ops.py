"""The table of operations as text."""

import msgspec
import pytest
from rich.cells import cell_len

from esprof.analyzers.ops.answer import Utilisation
from esprof.analyzers.views.kernel_names import short_kernel
from esprof.reports.terminal.ops import model_flop_utilisation, render_text
from esprof.reports.terminal.screen import Screen
from tests.cases import report as case
from tests.cases.gold import assert_gold


def test_a_run_without_modules_says_where_they_are_from():
    bare = msgspec.structs.replace(case.operations(), modules_recorded=False)
    assert "with_stack=True" in render_text(bare)
    assert "with_stack=True" not in render_text(case.operations())


def test_modules_have_a_column_for_their_backward_pass():
    modules = msgspec.structs.replace(case.operations(), by="module", sort="total-gpu")
    assert "Modules by total time on the GPU" in render_text(modules)
    assert "backward" in render_text(modules)
    assert "backward" not in render_text(case.operations())


def test_layout():
    assert_gold("ops.txt", render_text(case.operations()))


def test_layout_of_one_rank_without_a_gpu():
    assert_gold("ops-cpu.txt", render_text(case.operations(ranks=1, has_gpu=False)))


def test_colour_marks_the_rank_that_differs():
    text = render_text(case.operations(), Screen(width=120, colour=True))
    assert "\x1b[33m3.62 … 7.25, rank 1\x1b[0m" in text


@pytest.mark.parametrize("width", [100, 120])
def test_every_line_fits_the_screen(width):
    hostile = case.with_texts(case.operations(), case.HOSTILE * 5)
    for answer in (case.operations(ranks=512), hostile):
        assert max(cell_len(line) for line in render_text(answer, Screen(width=width)).splitlines()) <= width


def test_names_from_a_trace_are_escaped():
    hostile = case.with_texts(case.operations(), case.HOSTILE)
    text = render_text(hostile, Screen(width=120))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>" in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>, x>(int, y)", None),
        ("void at::native::(anonymous namespace)::fill<(int)2>(int)", "at::native::fill"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("<<<", "<<<"),
        ("operator->", "operator->"),
    ],
)
def test_a_kernel_s_short_name(name, short):
    assert short_kernel(name) == (short or "at::native::vectorized_elementwise_kernel")


def test_a_filter_without_a_match_is_reported():
    empty = msgspec.structs.replace(case.operations(), ops=(), found=0, pattern="conv")
    assert "no operation has a matching name" in render_text(empty)


@pytest.mark.parametrize(
    ("mfu", "counted", "text"),
    [
        (41.25, 1.0, "41.2 % of the device's peak: 1.50 TFLOP a step and rank in multiplications (16 bits 100.0 %)"),
        (41.25, 0.5, "at least 41.2 % of the device's peak: 1.50 TFLOP a step and rank in multiplications (16 bits 100.0 %)"
                     ", counted in 50.0 % of their time"),
        (None, 0.0, "unknown: no shapes were recorded"),
    ],
)  # fmt: skip
def test_the_utilisation_of_the_step_is_shown_or_why_it_is_unknown(mfu, counted, text):
    used = Utilisation(
        mfu_pct=mfu,
        reason=None if mfu else "no shapes were recorded",
        operations_per_step=1.5e12 if mfu else None,
        precisions={"16 bits": 1.0},
        counted_share=counted,
    )
    assert model_flop_utilisation(used) == text
