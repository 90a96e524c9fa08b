"""What changes of a kind are known to be off by."""

from typing import get_args

import msgspec
import pytest

from esprof.replay.whatif.error import model_errors as module
from esprof.replay.whatif.error.model_errors import (
    MODEL_ERRORS_FILE,
    JobClass,
    ModelErrors,
    known_errors,
    model_error,
    underestimate,
)
from esprof.replay.whatif.terms import TERMS


def test_errors_of_several_terms_add_up_by_their_squares(monkeypatch):
    monkeypatch.setattr(module, "known_errors", lambda: {"gpu": {"gpu": 0.03, "network": 0.04, "data": 0.12}})
    assert model_error("gpu", ["gpu", "network"]) == pytest.approx(0.05)
    assert model_error("gpu", ["gpu", "network", "data"]) == pytest.approx(0.13)


def test_a_term_that_stands_twice_counts_once(monkeypatch):
    monkeypatch.setattr(module, "known_errors", lambda: {"gpu": {"gpu": 0.03, "network": 0.04}})
    assert model_error("gpu", ["gpu", "gpu"]) == pytest.approx(0.03)


def test_a_term_that_is_not_known_is_as_wrong_as_19_of_20_that_are_or_as_all_if_they_are_few(monkeypatch):
    many = {str(at): at / 100 for at in range(1, 22)}
    monkeypatch.setattr(module, "known_errors", lambda: {"cpu": many})
    assert model_error("cpu", ["compress"]) == pytest.approx(0.20)
    monkeypatch.setattr(module, "known_errors", lambda: {"gpu": {"gpu": 0.03, "network": 0.04}, "cpu": {"cpu": 0.5}})
    assert model_error("gpu", ["compress"]) == pytest.approx(0.04)
    assert model_error("gpu", ["compress", "gpu"]) == pytest.approx(0.05)


def test_what_is_gained_beyond_predictions_of_several_terms_adds_up_by_squares_and_is_no_less_than_their_error(
    monkeypatch,
):
    monkeypatch.setattr(module, "known_errors", lambda: {"cpu": {"cpu": 0.01, "data": 0.2}, "gpu": {"cpu": 0.01}})
    monkeypatch.setattr(module, "known_underestimates", lambda: {"cpu": 0.3, "network": 0.4})
    assert underestimate("cpu", ["cpu", "network", "cpu"]) == pytest.approx(0.5)
    assert underestimate("cpu", ["data"]) == pytest.approx(0.2)
    assert underestimate("gpu", ["cpu"]) == pytest.approx(0.01)


def test_all_errors_that_are_known_are_those_of_terms():
    known = [*known_errors().values(), module.known_underestimates()]
    assert {term for errors in known for term in errors} <= set(TERMS)


def test_the_file_is_read_once():
    assert known_errors() is known_errors()


def test_every_error_has_a_source_that_is_described():
    read = msgspec.json.decode(MODEL_ERRORS_FILE.read_bytes(), type=ModelErrors)
    tables = [*read.errors.values(), read.underestimates]
    used = {source for terms in tables for by_source in terms.values() for source in by_source}
    assert used == set(read.sources)
    assert set(read.errors) == set(read.min_share_of_step) == set(get_args(JobClass))


def test_of_several_sources_the_greatest_counts_and_none_is_below_the_least():
    read = ModelErrors(
        min_share_of_step={"cpu": 0.05, "busy": 0.06},
        sources={},
        errors={"cpu": {"cpu": {"a": 0.07, "b": 0.09}, "data": {"a": 0.01}}, "busy": {"data": {"b": 0.2}}},
        underestimates={},
    )
    assert read.of("cpu") == {"cpu": 0.09, "data": 0.05}
    assert read.of("busy") == {"cpu": 0.09, "data": 0.2}
