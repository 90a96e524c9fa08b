"""The terms of the search, and their ideals."""

import pytest

from esprof.analyzers.advisors.search.changes import Revert, revert_of, terms_of
from esprof.core.errors import UsageError
from esprof.replay.whatif.grammar import known, parse


def test_values_of_one_target_are_one_term():
    loader, kernel = terms_of(["loader.workers=2", "kernel[a=b]=2x", "loader.workers=4", "loader.workers=2"])
    assert (loader.name, loader.values) == ("loader.workers", ("loader.workers=2", "loader.workers=4"))
    assert (kernel.name, kernel.ideal) == ("kernel[a=b]", ("kernel[a=b]=1000000x",))


WITHOUT_BOUND = ("assign", "balance", "microbatches", "pipeline", "sparsity", "stages", "straggler", "sync_every")


@pytest.mark.parametrize("value", [one for one in known() if not one.startswith((*WITHOUT_BOUND, "batch"))])
def test_each_other_term_of_the_grammar_has_an_ideal(value):
    (term,) = terms_of([value])
    assert value in ("accumulate=4", "recompute=full") or parse(",".join(term.ideal))


@pytest.mark.parametrize("value", [one for one in known() if one.startswith(WITHOUT_BOUND) and "assign" not in one])
def test_of_some_terms_no_bound_is_known(value):
    (term,) = terms_of([value])
    assert term.ideal is None


def test_a_term_after_which_a_step_does_other_work_is_refused():
    with pytest.raises(UsageError, match="other work"):
        terms_of(["batch=2x"])


def test_terms_that_cost_time_have_a_bound():
    recompute, divided, shared = terms_of(["recompute=full", "accumulate=2", "zero=1"])
    assert recompute.ideal == divided.ideal == ()
    assert shared.ideal == ("zero=1", "communication=0")


def test_links_and_codecs_share_an_ideal():
    assert {term.ideal for term in terms_of(["network=2x", "compress=bf16", "bucket_mb=4"])} == {("communication=0",)}
    assert {term.ideal for term in terms_of(["cache=0.5", "loader.workers=4"])} == {("data[ready]=0",)}


def test_what_is_no_term_is_refused():
    with pytest.raises(UsageError, match="not a what-if term"):
        terms_of(["latency=2x"])


def test_arguments_are_cheaper_to_undo_than_code_and_machines():
    efforts = list(Revert)
    undone = [revert_of(value) for value in ("loader.prefetch=4", "cache=0.5", "compress=bf16", "network=2x")]
    assert undone == efforts


@pytest.mark.parametrize("value", ["compress=bf16", "sync_every=8", "double_precision=2x", "sparsity[mlp]=2:4"])
def test_some_changes_make_the_job_learn_something_else(value):
    assert revert_of(value) is Revert.RESULTS
