"""The knob `compile` in processes that compile: whether kernels of templates compute the products of matrices."""

import json

import pytest

from tests.cases.record import job, run

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ONLY_TEMPLATES = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "CPP"}
"""A template computes each product that it can, whatever takes the least time on this machine."""


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """What the knob reads back in a process with these options and variables."""
    cache = str(tmp_path_factory.mktemp("inductor"))

    def read(*options: str, **variables: str) -> list[str | None]:
        ended = run(job("compiled_products.py", *options), TORCHINDUCTOR_CACHE_DIR=cache, **variables)
        assert ended.code == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    return read


def test_names_of_kernels_prove_the_change(read):
    assert read("--set", "max-autotune", **ONLY_TEMPLATES) == ["max-autotune", ""]
    assert read(**ONLY_TEMPLATES)[0] == "default"


def test_a_product_without_a_template_stays_with_the_library(read):
    assert read("--set", "max-autotune", "--linear") == ["default", "none of its kernels is from a template"]


def test_code_that_is_not_compiled_has_no_kernels(read):
    reason = "the process compiles nothing with torch.compile and inductor"
    assert read("--set", "max-autotune", "--eager") == [None, reason]


def test_a_machine_without_a_compiler_has_none(read):
    variables = {"CXX": "no-such-compiler", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    assert read("--set", "max-autotune", **variables) == [None, "there is no C++ compiler, which inductor needs"]
