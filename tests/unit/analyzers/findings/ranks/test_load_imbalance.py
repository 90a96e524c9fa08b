"""ESP205: the amounts of work of the ranks that are late in different steps."""

import pytest

from esprof.run.run import Run
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.step_runs import step_table

STEPS = 8


def job(tokens: dict[int, list[int]]) -> Run:
    """Two ranks that are late by 5 of 50 ms in turn; `tokens` of each rank in each step."""
    ranks = {}
    for rank in (0, 1):
        ranks[rank] = []
        for n in range(STEPS):
            at, late = n * 50_000.0, 5_000.0 if n % 2 == rank else 0.0
            ranks[rank] += [
                step(n, at, at + 50_000),
                op("forward", at, 20_000 + late),
                *gloo(at + 20_000 + late, at + 20_005 + late, at + 30_000),
                op("end", at + 30_010, 19_990),
            ]
    steps = {rank: step_table([50] * STEPS, start_ns=EPOCH_NS, phase="timed", tokens=tokens[rank]) for rank in tokens}
    return run_of(ranks, steps=steps)


def imbalance(run: Run):
    (found,) = (one for one in ungrouped(run) if one.id == "ESP205")
    return found


def test_more_tokens_of_the_late_rank_are_named():
    in_turn = [1500, 1000] * (STEPS // 2)
    found = imbalance(job({0: in_turn, 1: in_turn[::-1]}))
    assert found.title.endswith("waits for one of them, which has 1.2 times the tokens of the mean rank")
    assert found.evidence["latest_over_mean_rank"].of("tokens") == pytest.approx(1.2)
    assert found.saving_low_us >= found.saving_us / 2


def test_equal_tokens_are_no_reason():
    found = imbalance(job({0: [1000] * STEPS, 1: [1000] * STEPS}))
    assert found.title.endswith("each step waits for one of them")
    assert found.evidence["latest_over_mean_rank"].of("tokens") == 1


def test_unknown_tokens_are_not_compared():
    assert "latest_over_mean_rank" not in imbalance(job({})).evidence
