"""The search for a split: equal to a plain search over all splits, and never below the bound."""

from math import inf

import pytest

from esprof.analyzers.advisors.parallel.partition import lower_bound_us, search
from esprof.analyzers.advisors.parallel.problem import Problem
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.core.errors import UsageError
from tests.cases.layers import every_split, layer, random_problem


def test_the_best_split_is_that_of_a_search_over_all() -> None:
    without = 0
    for seed in range(200):
        problem = random_problem(seed)
        best = min(map(problem.bound_us, every_split(problem)), default=inf)
        found = search(problem)
        bound_us = lower_bound_us(
            [problem], dict(zip(problem.kinds, problem.counts, strict=True)), problem.microbatches
        )
        without += best == inf
        assert (problem.bound_us(found[0]) if found else inf) == pytest.approx(best, rel=1e-9), seed
        assert all(problem.bound_us(split) >= bound_us * (1 - 1e-9) for split in found)
    assert 5 < without < 100


def test_of_one_stage_the_best_number_of_replicas_is_among_the_splits() -> None:
    layers = (layer("big", parameter_bytes=10**7), layer("small"))
    problem = Problem.of(LayerProfile(layers=layers), Devices(devices={"V100": 4}, network_gb_per_s=1.0), 2)
    # The all-reduce of 10 MB takes 10 ms, far more than all work: more replicas do not pay.
    assert [split[0].replicas for split in search(problem) if len(split) == 1] == [1]


def test_a_search_that_takes_too_long_is_refused() -> None:
    layers = tuple(layer(str(number)) for number in range(200))
    devices = Devices(devices={"V100": 400, "P100": 400}, network_gb_per_s=1.0)
    times = dict.fromkeys(("V100", "P100"), layers[0].times["V100"])
    both = LayerProfile(
        layers=tuple(type(one)(name=one.name, times=times, output_bytes=0, parameter_bytes=0) for one in layers)
    )
    with pytest.raises(UsageError, match="each pass of the search"):
        search(Problem.of(both, devices, 8))
