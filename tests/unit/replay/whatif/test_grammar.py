"""The what-if grammar: parsed terms, and errors that list the known terms."""

import pytest

from esprof.core.errors import UsageError
from esprof.replay.whatif.grammar import known, literal, parse


def test_every_documented_term_parses():
    for text in known():
        (term,) = parse(text)
        assert term.text == text


def test_one_scenario_holds_several_terms():
    assert [term.kind.name for term in parse("gpu=2x, network=0.5x,data=0")] == ["gpu", "network", "data"]


@pytest.mark.parametrize(
    ("text", "target", "factor"),
    [("gpu=2x", "gpu", 2.0), ("cpu=0.5", "cpu", 0.5), ("network=1.5X", "network", 1.5), ("rank3.gpu=4x", "gpu", 4.0)],
)
def test_speed_ups_are_factors(text, target, factor):
    (term,) = parse(text)
    assert (term.kind.name, term.value) == (target, factor)


def test_scopes_name_a_rank_or_a_device():
    assert parse("rank12.cpu=2x")[0].only == (12,)
    assert parse("rank0-2+5.cpu=2x")[0].only == (0, 1, 2, 5)
    assert parse("rank5+0-2.cpu=2x")[0].canonical == "rank0-2+5.cpu[None]=2.0"
    assert parse("device[Tesla V100-SXM2,16GB].gpu=2x")[0].device == "Tesla V100-SXM2,16GB"


@pytest.mark.parametrize("text", ["rank3-1.gpu=2x", "rank0-.gpu=2x", "rank+1.gpu=2x", "rank1,2.gpu=2x"])
def test_ranks_that_cannot_be_are_a_usage_error(text):
    with pytest.raises(UsageError):
        parse(text)


def test_a_wrong_factor_is_quoted_as_it_was_written():
    with pytest.raises(UsageError, match="'2xx' is not a number"):
        parse("gpu=2xx")


def test_commas_and_equal_signs_inside_brackets_belong_to_the_pattern():
    terms = parse("kernel[gemm<a,b>=c{1,2}]=2x,gpu=2x")
    assert [term.kind.name for term in terms] == ["kernel", "gpu"]
    assert terms[0].argument.search("gemm<a,b>=cc")


@pytest.mark.parametrize(
    "text",
    ["void gemm<float, 4>(int*[2], float)", "a.py(3): f → b.py(1): <lambda>", "x=[y]],", "([{", "2^n $ \\d", "naïve"],
)
def test_any_text_can_be_named_literally(text):
    (term,) = parse(f"kernel[^{literal(text)}$]=2x")
    assert term.argument.search(text)
    assert not term.argument.search(text.replace(text[0], "_", 1))


@pytest.mark.parametrize(
    "text",
    ["", ",", "gpu", "gpu=", "gpu=fast", "gpu=0x", "gpu=-1x", "gpu=infx", "gpu=nan", "warp=2x", "straggler=2x", "data=1",
     "overlap=none", "kernel[(]=2x", "kernel[a{99999999999}]=2x",
     "rank" + 5000 * "1" + ".gpu=2x", "compress=", "rankx.gpu=2x", "rank1.network=2x", "kernel=2x",
     "network=2x,network=3x", "gpu=2x,data=0,gpu=3x", "bucket_mb=1,bucket_mb=2", "compress=bf16,compress=int8"],
)  # fmt: skip
def test_an_invalid_term_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse(text)


def test_a_term_counts_once():
    (term,) = parse("network=2x,network=2.0x")
    assert term.value == 2
    assert len(parse("rank0.gpu=2x,rank1.gpu=3x,gpu=2x")) == 3


@pytest.mark.parametrize(
    ("text", "meant"),
    [("networx=2x", "network=2x"), ("rank3.gqu=2x", "gpu=2x"), ("loader.worker=4", "loader.workers=4"),
     ("bucket=25", "bucket_mb=50"), ("gpu", "gpu=2x"), ("kernels[a]=2x", "kernel[REGEX]=2x")],
)  # fmt: skip
def test_a_mistyped_target_is_answered_by_the_one_that_it_resembles(text, meant):
    with pytest.raises(UsageError) as error:
        parse(text)
    assert error.value.remedy.startswith(f"Did you mean {meant}")
    assert "collective" not in error.value.remedy


def test_a_misplaced_scope_or_bracket_is_answered_by_the_way_to_write_the_term():
    with pytest.raises(UsageError) as error:
        parse("rank1.network=2x")
    assert error.value.remedy == "Write network=2x or network=600Gbit or network=NDR."


@pytest.mark.parametrize("value", ["0", "2x", "1e9"])
def test_a_size_out_of_range_is_answered_as_a_size(value):
    with pytest.raises(UsageError, match=r"0\.001 to 1,000,000") as error:
        parse(f"bucket_mb={value}")
    assert error.value.remedy == "It is a size in MiB, such as 50."


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(UsageError) as error:
        parse("warp=2x")
    assert all(term in str(error.value) for term in known())
