"""Which work of a thread grows with the samples, worked by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.whatif.samples.sized_work import SizedWork
from esprof.replay.whatif.scenario import Declined
from tests.cases.graph import EPOCH_NS, MAIN, numbered, op, run_of, step
from tests.cases.layered import shaped
from tests.cases.messages import marked
from tests.cases.properties import thorough

ENGINE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"


def sample_step():
    """A linear layer, its backward pass, and an update. A view takes 10 µs."""
    weights = [8, 8]
    return [
        step(1, 0, 3000),
        shaped(numbered("aten::linear", 100, 400, 1), [[4, 8], weights, [8]]),
        shaped(op("aten::t", 100, 10), [weights]),
        shaped(op("aten::addmm", 120, 300), [[8], [4, 8], [8, 8]]),
        numbered(f"{ENGINE}AddmmBackward0", 1000, 600, 1, forward_thread=MAIN),
        shaped(op("aten::mm", 1000, 500), [[8, 4], [4, 8]]),
        op(f"{ENGINE}{GRADIENT}", 1700, 200),
        shaped(op(GRADIENT, 1700, 200), [weights]),
        shaped(op("aten::add_", 1700, 100), [weights, weights]),
        marked("Optimizer.step#AdamW.step", 2000, 300),
        shaped(op("aten::addcdiv_", 2000, 300), [[64]]),
    ]


def sized(rows):
    return SizedWork.of(run_of({0: rows}).events(0), MAIN)


def within_us(work, *span):
    most, least = work.within(*(np.array([EPOCH_NS + round(1000 * at)]) for at in span))
    return float(most[0]) / 1000, float(least[0]) / 1000


def test_operations_grow_but_for_the_cost_of_a_call():
    work = sized(sample_step())
    # Of the layer itself 90 of 400 µs are not in other operations, and 10 are a call; of the product 300 and 10.
    assert within_us(work, 0, 1000) == pytest.approx((80 + 290, 80 + 290))
    # The node itself has no shapes. As fast as the other product, this one of as many multiplications takes 300 µs.
    assert within_us(work, 1000, 1700) == pytest.approx((490, 300))


def test_gradients_and_updates_stay():
    assert within_us(sized(sample_step()), 1650, 3000) == (0, 0)


def test_growing_work_is_spread_over_an_operation():
    work = sized(sample_step())
    assert within_us(work, 120, 270) == pytest.approx((145, 145))
    assert within_us(work, 100, 110) == (0, 0)


def test_a_product_without_parameters_grows_all():
    rows = sample_step()
    rows.append(shaped(numbered("aten::mm", 600, 400, 2), [[4, 9], [9, 4]]))
    assert within_us(sized(rows), 600, 1000) == pytest.approx((390, 390))


def test_a_faster_product_tells_how_little_of_others_surely_grows():
    rows = sample_step()
    # 1,024 operations in 30 µs: 512 take 15.
    rows.append(shaped(numbered("aten::addmm", 600, 30, 2), [[16], [4, 8], [8, 16]]))
    most, least = within_us(sized(rows), 1000, 1700)
    assert (most, least) == pytest.approx((490, 15))


def test_a_faster_convolution_tells_how_little_of_others_surely_grows():
    """110,592 operations forward in 400 µs, and twice as many backward in 600: at that rate, 300 µs forward."""
    given, weights = [4, 3, 10, 10], [8, 3, 3, 3]
    rows = [
        step(1, 0, 3000),
        shaped(numbered("aten::mkldnn_convolution", 100, 400, 1), [given, weights]),
        shaped(op("aten::t", 600, 10), [[8]]),
        numbered(f"{ENGINE}ConvolutionBackward0", 1000, 600, 1, forward_thread=MAIN),
        shaped(op("aten::convolution_backward", 1000, 600), [[4, 8, 8, 8], given, weights]),
        op(f"{ENGINE}{GRADIENT}", 1700, 200),
        shaped(op(GRADIENT, 1700, 200), [weights]),
    ]
    assert within_us(sized(rows), 0, 1000) == pytest.approx((390, 300))
    assert within_us(sized(rows), 1000, 1700) == pytest.approx((590, 590))


def test_without_shapes_nothing_is_known():
    rows = [step(1, 0, 100), op("aten::mm", 0, 50)]
    with pytest.raises(Declined, match="without shapes"):
        sized(rows)
    with pytest.raises(Declined, match="shapes of gradients"):
        sized([*rows, shaped(op("aten::mm", 60, 20), [[4, 4], [4, 4]])])


@thorough()
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=12), st.data()
)
def test_parts_of_ranges_add_up_to_what_operations_grow(widths, data):
    """The plain reference: each operation of own time, less a call, wherever it is cut."""
    rows, now, expected = sample_step(), 5000.0, 0.0
    for outer, inner, gap in widths:
        rows.append(shaped(numbered("aten::gelu", now, outer + inner, 9), [[4, 8]]))
        if inner:
            rows.append(shaped(op("aten::tanh", now + outer / 2, inner), [[4, 8]]))
        expected += max(outer - 10, 0) + max(inner - 10, 0)
        now += outer + inner + gap
    work = sized(rows)
    cuts = sorted({5000.0, now, *data.draw(st.lists(st.floats(5000, now), max_size=5))})
    parts = [within_us(work, *pair)[0] for pair in pairwise(cuts)]
    assert sum(parts) == pytest.approx(expected, abs=0.05)
