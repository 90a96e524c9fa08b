"""Samples that the ranks of a host read, as recorded and in another order."""

import gc

import numpy as np
import pytest

from esprof.replay.whatif.loading.orders import ReadOrder
from esprof.replay.whatif.loading.recorded_reads import _KNOWN, RecordedReads, recorded_reads
from esprof.replay.whatif.scenario import Declined
from esprof.run.raw.sample_keys import FIRST_HASH
from esprof.run.run import Run
from esprof.run.schema import ACCESSES, Table, table
from tests.cases.graph import EPOCH_NS, op, run_of, stage, step

STEP_US = 1000.0


def accesses(*batches: tuple[int, float, list[int]], items: int | None = 100) -> Table:
    """Batches as (pass, start in µs, keys)."""
    rows = [(loader, EPOCH_NS + round(at * 1000), key) for loader, at, keys in batches for key in keys]
    loaders, starts, keys = zip(*rows, strict=True)
    return table({"loader": loaders, "start_ns": starts, "key": keys, "items": [items] * len(rows)}, ACCESSES)


def job(*ranks: Table, hosts: dict[int, str] | None = None) -> Run:
    """Passes 0 and 1 are taken in two steps each, and pass 2, a validation, in one."""
    steps = [step(n, n * STEP_US, (n + 1) * STEP_US) for n in range(5)]
    taken = [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 4)]
    calls = [
        stage("next", n, at * STEP_US, at * STEP_US + 10) | {"loader": loader} for n, (loader, at) in enumerate(taken)
    ]
    everyone = range(len(ranks))
    return run_of(
        {rank: [*steps, op("forward", 1, 900)] for rank in everyone},
        stages=dict.fromkeys(everyone, calls),
        accesses=dict(enumerate(ranks)),
        hosts=hosts,
    )


def test_the_ranks_of_a_host_read_together_in_order_of_time():
    first = accesses((0, 10, [1, 2]), (0, 30, [5]), (1, 2000, [2]), (2, 4000, [99]))
    second = accesses((0, 20, [3, 4]), (1, 1999, [4]))
    run = job(first, second)
    found = recorded_reads(run, 1)
    assert found.key.tolist() == [1, 2, 3, 4, 5, 4, 2], "and the validation does not count"
    assert found.number.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert found.items == 100
    assert recorded_reads(run, 0) is found
    apart = job(first, second, hosts={0: "a", 1: "b"})
    assert recorded_reads(apart, 1).key.tolist() == [3, 4, 4]


def test_reads_go_with_their_run():
    run = job(accesses((0, 10, [1, 2])))
    recorded_reads(run, 0)
    known = len(_KNOWN)
    del run
    gc.collect()
    assert len(_KNOWN) < known


def test_without_keys_there_are_no_reads():
    assert recorded_reads(run_of({0: [step(0, 0, 10), op("forward", 1, 8)]}), 0) is None


def test_a_data_set_of_unknown_length_has_the_samples_that_were_read():
    assert recorded_reads(job(accesses((0, 10, [1, 2, 1]), items=None)), 0).items == 2


def reads(*passes: np.ndarray, items: int = 1000) -> RecordedReads:
    number = np.repeat(np.arange(len(passes)), [len(keys) for keys in passes])
    return RecordedReads(np.concatenate(passes), number, items)


RNG = np.random.default_rng(0)
REPEATED = RNG.permutation(np.repeat(np.arange(1000), 3))
"""A pass that reads each sample three times."""


@pytest.mark.parametrize(
    ("passes", "are_fresh"),
    [
        ([RNG.permutation(1000)], True),
        ([RNG.permutation(1000), RNG.permutation(1000)], True),
        ([np.append(RNG.permutation(1000), 5)], True),  # as a distributed sampler does
        ([np.arange(1000)], False),
        ([RNG.integers(0, 1000, 1000)], False),
        ([REPEATED], False),
    ],
)
def test_a_fresh_shuffle_reads_each_sample_once_a_pass_and_not_in_order(passes, are_fresh):
    assert reads(*passes).are_fresh_shuffles == are_fresh


def rate(of: RecordedReads, share: float, policy: str = "lru") -> float:
    return of.curve.rate(policy, share).rate


def test_in_sequential_order_repeats_follow_each_other():
    ordered = reads(REPEATED).ordered(ReadOrder(shuffled=False))
    assert rate(ordered, 0.001) == pytest.approx(2 / 3)
    assert rate(ordered, 0.9) == pytest.approx(2 / 3), "the next pass begins with what was replaced"


def test_in_blocks_repeats_are_as_near_as_the_block_is_large():
    shuffled, blocks = (reads(REPEATED).ordered(ReadOrder(shuffled=True, block=block)) for block in (None, 20))
    assert rate(shuffled, 0.05) < 0.1
    assert rate(blocks, 0.02) == pytest.approx(2 / 3, abs=0.02)
    assert rate(reads(REPEATED).ordered(ReadOrder(shuffled=False, block=20)), 0.001) == pytest.approx(2 / 3)


def test_a_block_is_read_as_a_whole():
    keys = reads(RNG.permutation(1000)).ordered(ReadOrder(shuffled=True, block=10)).key[:1000]
    blocks = keys.reshape(-1, 10)
    assert (np.ptp(blocks, axis=1) < 10).all()
    assert (np.diff(blocks[:, 0]) < 0).any()
    assert (np.diff(blocks, axis=1) < 0).any()
    assert sorted(keys.tolist()) == list(range(1000))


def test_a_shuffle_of_a_data_set_in_order_has_the_hits_of_fresh_shuffles():
    ordered = reads(np.arange(5000), items=5000).ordered(ReadOrder(shuffled=True))
    assert rate(ordered, 0.5) == pytest.approx(0.1534, abs=0.02)


def test_a_part_of_a_pass_stands_for_the_data_set_and_a_short_last_pass_is_left_out():
    part = reads(RNG.permutation(10_000)[:3000], items=10_000).ordered(ReadOrder(shuffled=True))
    assert (part.items, len(part.key)) == (3000, 4 * 3000)
    whole = reads(np.arange(1000), np.arange(300)).ordered(ReadOrder(shuffled=True))
    assert (whole.items, len(whole.key)) == (1000, 4 * 1000)


def test_samples_without_an_index_have_no_blocks():
    hashed = reads(RNG.permutation(100) + FIRST_HASH)
    assert len(hashed.ordered(ReadOrder(shuffled=True)).key) == 400
    with pytest.raises(Declined, match="not read by index"):
        hashed.ordered(ReadOrder(shuffled=True, block=10))
