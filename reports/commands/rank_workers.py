"""Options and workers of verbs that build the ranks of a large run one by one."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from esprof.core.errors import InputError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    from esprof import Run
    from esprof.replay.over_ranks import RankWorkers
    from esprof.run.run import RunWarning

_MOST_PROCESSES = 8
"""Unless --processes asks for more. Each needs up to a gigabyte."""
_TIMEOUT_S = 30
"""How long the scheduler of a cluster may take to answer."""


@dataclass(frozen=True)
class WhereRanksAre:
    """Where the ranks of a large run are to be built: the values of --processes and --dask."""

    processes: int | None
    dask: str | None


def rank_workers_options(command: Callable[..., None]) -> Callable[..., None]:
    """--processes and --dask, which `command` takes as `where`. Both change nothing in the answer to a run of usual size."""

    @wraps(command)
    def with_where(*arguments: Any, processes: int | None, dask: str | None, **options: Any) -> None:
        command(*arguments, where=WhereRanksAre(processes, dask), **options)

    add_processes = click.option(
        "--processes",
        metavar="N",
        type=click.IntRange(min=1),
        help=f"Processes that build the ranks of a large run. Default: one per CPU, at most {_MOST_PROCESSES}.",
    )
    add_dask = click.option(
        "--dask",
        metavar="ADDRESS",
        help="Build them on the Dask cluster of this scheduler.",
    )
    return add_processes(add_dask(with_where))


def is_final(warnings: "Iterable[RunWarning]") -> bool:
    """Whether an answer with these warnings would be the same again: a rank whose tasks failed may be built another time."""
    from esprof.replay.skeleton.large import RANK_FAILED

    return all(warning.code != RANK_FAILED for warning in warnings)


@contextmanager
def rank_workers(run: "Run", where: WhereRanksAre, tell: Callable[[str], object]) -> "Iterator[RankWorkers]":
    """The workers of `run` while the block runs; they `tell` their progress. Raises UsageError, and InputError if no
    scheduler answers."""
    from esprof.replay.over_ranks import RankWorkers
    from esprof.replay.run_by_name import RunByName
    from esprof.replay.skeleton.large import is_large

    travels = RunByName(run).travels
    asked = where.dask or (where.processes or 1) > 1
    if asked and not travels:
        raise UsageError(
            "only the ranks of a Run directory can be built in other processes",
            path=run.path,
            remedy="Leave --processes and --dask out: traces are read by one process.",
        )
    usable = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    count = where.processes or (usable if travels else 1)
    if not is_large(run) or (count == 1 and not where.dask):
        yield RankWorkers(tell=tell)
    elif where.dask:
        with _dask_client(where.dask) as client:
            yield RankWorkers(client.get_executor(pure=False), tell)
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # A forked process would have the locks of threads that it lacks.
        with ProcessPoolExecutor(count, get_context("spawn")) as pool:
            yield RankWorkers(pool, tell)


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    try:
        from dask.distributed import Client
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"--dask needs {error.name}, which is not installed", remedy="pip install 'esprof[scale]'"
        ) from error
    try:
        client = Client(address, timeout=_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        remedy = "Name the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786."
        raise InputError(f"no Dask scheduler answers at {address}: {error}", remedy=remedy) from error
    with client:
        yield client
