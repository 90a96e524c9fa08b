"""How far answers may be off: scatter, and what changes of a kind are known to be off by."""

import numpy as np
import pytest

from esprof.replay.whatif.error import margins
from esprof.replay.whatif.error.margins import beyond_scatter, model_error
from esprof.replay.whatif.terms import TERMS


def test_an_error_that_the_scatter_of_steps_explains_is_none():
    assert beyond_scatter(0.1, [8.0, 12.0, 8.0, 12.0], [9.0, 13.0, 9.0, 13.0]) == 0
    assert beyond_scatter(-0.1, [8.0, 12.0, 8.0, 12.0], [9.0, 13.0, 9.0, 13.0]) == 0


@pytest.mark.parametrize("error", [0.1, -0.1])
def test_an_error_of_steps_that_do_not_scatter_counts_in_full(error):
    assert beyond_scatter(error, [10.0, 10.0], [10.0, 10.0]) == pytest.approx(0.1)


def test_of_a_greater_error_what_scatter_does_not_explain_counts():
    seen, unseen = [9.9, 10.1, 9.9, 10.1], [9.9, 10.1, 9.9, 10.1]
    scatter = 2.36 * np.std(seen + unseen, ddof=1) * np.sqrt(1 / 4 + 1 / 4) / 10
    assert beyond_scatter(0.3, seen, unseen) == pytest.approx(0.3 - scatter)


def test_errors_of_several_terms_add_up_by_their_squares(monkeypatch):
    monkeypatch.setattr(margins, "MODEL_ERROR", {"gpu": {"gpu": 0.03, "network": 0.04, "data": 0.12}})
    assert model_error("gpu", ["gpu", "network"]) == pytest.approx(0.05)
    assert model_error("gpu", ["gpu", "network", "data"]) == pytest.approx(0.13)


def test_a_term_that_stands_twice_counts_once(monkeypatch):
    monkeypatch.setattr(margins, "MODEL_ERROR", {"gpu": {"gpu": 0.03, "network": 0.04}})
    assert model_error("gpu", ["gpu", "gpu"]) == pytest.approx(0.03)


def test_a_term_that_is_not_known_has_the_greatest_error_of_its_class(monkeypatch):
    monkeypatch.setattr(margins, "MODEL_ERROR", {"gpu": {"gpu": 0.03, "network": 0.04}, "cpu": {"cpu": 0.5}})
    assert model_error("gpu", ["compress"]) == pytest.approx(0.04)
    assert model_error("gpu", ["compress", "gpu"]) == pytest.approx(0.05)


def test_all_errors_that_are_known_are_those_of_terms():
    assert {term for known in margins.MODEL_ERROR.values() for term in known} <= set(TERMS)
