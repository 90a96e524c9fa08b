"""Work on the ranks of a run, one rank a task: in this process, or on the workers of an executor."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import TypeVar

from esprof.core.errors import EsprofError
from esprof.core.types import Rank

_Task = TypeVar("_Task")
_Made = TypeVar("_Made")


class RanksLost(EsprofError):
    """The tasks of some ranks failed twice. `reasons` are the errors of the second try, by rank."""

    def __init__(self, reasons: Mapping[Rank, Exception]) -> None:
        super().__init__(f"ranks {', '.join(map(str, reasons))} could not be read or built by two workers")
        self.reasons = reasons


class WorkersGone(EsprofError):
    """The executor can run no more tasks."""


@dataclass(frozen=True)
class RankWorkers:
    """Where the tasks of ranks run.

    On an executor of processes, tasks and results travel: a task names a rank and its Run (`RunByName`) and has arrays of
    that rank only. Functions must be at the top level of a module, or partials or methods of what pickles.
    """

    executor: Executor | None = None
    """None for this process. Threads, processes, or `dask.distributed.Client.get_executor()`."""
    tell: Callable[[str], object] = lambda what: None
    """Told what is being done, for a progress display."""

    def over(self, what: str, work: Callable[[_Task], _Made], tasks: Iterable[tuple[Rank, _Task]]) -> Iterator[_Made]:
        """`work` of each task, in order; `what` it does is told. With an executor all tasks are submitted at once, a task
        that fails is run once more, and RanksLost is raised after the others. Without one, errors are raised as they are."""
        made = self._submitted(work, tasks) if self.executor else (work(task) for _, task in tasks)
        for done, one in enumerate(made, 1):
            self.tell(f"{what}, rank by rank: {done:,} done")
            yield one

    def _submitted(self, work: Callable[[_Task], _Made], tasks: Iterable[tuple[Rank, _Task]]) -> Iterator[_Made]:
        assert self.executor is not None
        waiting: deque[tuple[Rank, _Task, Future[_Made]]] = deque(
            (rank, task, self.executor.submit(work, task)) for rank, task in tasks
        )
        lost: dict[Rank, Exception] = {}
        try:
            while waiting:
                rank, task, future = waiting.popleft()
                try:
                    yield _result(self.executor, work, task, future)
                except _Failed as failed:
                    lost[rank] = failed.reason
        finally:
            for _, _, future in waiting:
                future.cancel()
        if lost:
            raise RanksLost(lost)


IN_THIS_PROCESS = RankWorkers()


class _Failed(Exception):
    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _result(executor: Executor, work: Callable[[_Task], _Made], task: _Task, first: "Future[_Made]") -> _Made:
    """The result of the first try, or of a second one. Raises _Failed, and WorkersGone."""
    try:
        return first.result()
    except BrokenExecutor as error:
        raise _gone(error) from error
    except Exception:  # noqa: BLE001 - whatever a worker raises, a second try may succeed.
        pass
    try:
        return executor.submit(work, task).result()
    except BrokenExecutor as error:
        raise _gone(error) from error
    except Exception as error:
        raise _Failed(error) from error


def _gone(error: BrokenExecutor) -> WorkersGone:
    remedy = (
        "Often the system has killed it for its memory: use fewer workers (--processes), or those of other machines "
        "(--dask)."
    )
    return WorkersGone(f"a worker process ended: {error}", remedy=remedy)
