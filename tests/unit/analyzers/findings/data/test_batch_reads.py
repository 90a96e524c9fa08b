"""What the batches of a rank read, by pass."""

import pytest

from esprof.analyzers.findings.data.batch_reads import BatchReads, batch_reads
from esprof.run.run import Run
from tests.cases.waiting import STORED_BYTES, waiting_job, waiting_rank

N = 30


def job(missed: list[float], hosts: tuple[str | None, ...] = ("a",), **more) -> Run:
    """Passes of ten batches of 50 ms, 45 ms of which are blocked, on a rank of each host."""
    ranks = [waiting_rank([50.0] * N, missed=missed, of_pass=10, **more) for _ in hosts]
    return waiting_job(*ranks, hosts=dict(enumerate(hosts)))


EPOCH_BYTES = 10 * STORED_BYTES


@pytest.mark.parametrize("workers", [0, 2])
def test_later_passes_read_what_the_first_has_read(workers):
    reads = batch_reads(job([1.0] * 10 + [0.6] * 20, workers=workers), 0)
    assert reads == BatchReads(asked=EPOCH_BYTES, is_from_storage=True, missed_again=pytest.approx(0.6))


@pytest.mark.parametrize(("hosts", "missed_again"), [(("a", "a"), 0.6), (("a", "b"), None), ((None, None), None)])
def test_another_host_may_have_read_it_before(hosts, missed_again):
    """Ranks that share samples out again in each epoch read those of the others, from another host's page cache."""
    reads = batch_reads(job([1.0] * 10 + [0.6] * 20, hosts), 0)
    assert reads.missed_again == (missed_again and pytest.approx(missed_again))


def test_reads_that_are_too_few_to_block_anything_are_not_from_storage():
    """1 kB in 45 ms, as a data set that waits for a remote store reads of its own files."""
    assert not batch_reads(job([0.001] * N), 0).is_from_storage
    assert not batch_reads(job([0.0] * N), 0).is_from_storage


def test_without_counters_nothing_is_known():
    assert batch_reads(job([]), 0) == BatchReads(asked=0, is_from_storage=False, missed_again=None)
