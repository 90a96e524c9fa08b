"""Work on ranks, on an executor and without one."""

from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest

from esprof.replay.over_ranks import IN_THIS_PROCESS, RanksLost, RankWorkers, WorkersGone

TASKS = [(rank, 10 * rank) for rank in range(5)]


def double(task):
    return 2 * task


def test_results_are_in_the_order_of_the_tasks():
    with ThreadPoolExecutor(2) as pool:
        for workers in (IN_THIS_PROCESS, RankWorkers(pool)):
            assert [*workers.over("Doubling", double, TASKS)] == [0, 20, 40, 60, 80]


def test_progress_is_told():
    told = []
    [*RankWorkers(tell=told.append).over("Doubling", double, TASKS)]
    assert told[0] == "Doubling, rank by rank: 1 done"
    assert len(told) == 5


def test_a_task_that_fails_is_run_once_more():
    tries = {}

    def fails_at_first(task):
        tries[task] = tries.get(task, 0) + 1
        if tries[task] == 1:
            raise OSError
        return task

    with ThreadPoolExecutor(1) as pool:
        assert [*RankWorkers(pool).over("Trying", fails_at_first, TASKS)] == [0, 10, 20, 30, 40]
    assert set(tries.values()) == {2}


def fails_for_some(task):
    if task in (10, 30):
        raise OSError(f"disk {task}")
    return task


def test_ranks_that_fail_twice_are_named_after_the_others():
    with ThreadPoolExecutor(2) as pool:
        made = RankWorkers(pool).over("Reading", fails_for_some, TASKS)
        assert [next(made), next(made), next(made)] == [0, 20, 40]
        with pytest.raises(RanksLost) as lost:
            next(made)
    assert {rank: str(reason) for rank, reason in lost.value.reasons.items()} == {1: "disk 10", 3: "disk 30"}


def test_without_an_executor_errors_are_raised():
    with pytest.raises(OSError, match="disk 10"):
        [*IN_THIS_PROCESS.over("Reading", fails_for_some, TASKS)]


class Broken(Executor):
    def submit(self, work, task):
        future = Future()
        future.set_exception(BrokenExecutor("a child process was terminated"))
        return future


def test_workers_that_are_gone_are_an_error_with_a_remedy():
    with pytest.raises(WorkersGone, match="terminated") as gone:
        [*RankWorkers(Broken()).over("Reading", double, TASKS)]
    assert "fewer workers" in str(gone.value)
