"""Record from a job's own code (`record`, `step`, `stage`, `labels`), or processes that another program starts
(`environment`).

A process runs one copy of the recorder (`injected`), in the package `esprof_guest`: the copy that `esprof record` injected,
or the one that `record` loads. Only `record` imports torch.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from esprof.core.errors import EsprofError, MissingDependencyError, UsageError
from esprof.recorder.launcher.raw_folder import enter, open_to_all
from esprof.recorder.shared.environment import RUN, with_hook
from esprof.recorder.shared.talk import say
from esprof.run.raw.settings import Settings

_HERE = Path(__file__).resolve().parent
_GUEST = "esprof_guest"

_recorded: Path | None = None
"""The Run that `record` records, or has recorded, in this process."""


@contextmanager
def record(run: str | os.PathLike[str] | None = None, **settings: Any) -> Iterator[None]:
    """Record this process into the directory `run` during the block; the default is the variable ESPROF_RUN.

    Every rank of a job calls this with the same `run`, on a shared disk or on each host's own, after its process group has
    been created. `settings` are the fields of `Settings`, named like the options of `esprof record`: `skip`, `warmup`,
    `steps`, `stack_steps` and `every` in steps, `skip_s` and `every_s` in seconds. A step ends when an optimizer steps, or
    when the job calls `step`.

    If `run` is a Run already, because the script was started before, the directory is `run-2`, then `run-3`, and so on, and
    a message says so.

    The first `esprof.load(run)` or `esprof diagnose run` afterwards completes the run. In a job that `esprof record` records
    already, this only prints a message.

    Raises OutputError if `run` exists and is no Run, UsageError if this process was recorded before or no run is given,
    ValueError or TypeError for invalid settings, MissingDependencyError without torch. Inside the block no fault of the
    recorder reaches the job.
    """
    if _recorded is not None:
        raise UsageError(
            f"this process was recorded already, into {_recorded}", remedy="Call record() once per process."
        )
    _require_torch()
    if current_session() is not None:
        if os.environ.get("RANK", "0") == "0":
            say(
                f"record({'' if run is None else repr(str(run))}) has no effect: `esprof record` records this job already"
            )
        yield
        return
    if run is None and RUN not in os.environ:
        raise UsageError("record() has no Run directory", remedy=f"Pass `run`, or set {RUN}.")
    session = _begin(Path(run or os.environ[RUN]), Settings(**settings))
    try:
        yield
    finally:
        if session is not None:
            session.recorder.finish()
            session.probe.stop()


def environment(run: str | os.PathLike[str], **settings: Any) -> dict[str, str]:
    """Create the directory `run`, and return the environment variables (ESPROF_RUN, PYTHONPATH) that make Python processes
    record into it, for jobs started by a scheduler, by Ray or by hand.

    The training scripts need no change. Each process needs its rank, from RANK and WORLD_SIZE or from its process group. On
    other hosts `run` and esprof must have the same paths. `settings` are those of `record`. The first `esprof.load(run)`
    after the end of all processes completes the run.

    Raises OutputError if `run` exists or cannot be created, ValueError or TypeError for invalid settings.
    """
    return with_hook(os.environ, str(open_to_all(Path(run), Settings(**settings))), str(_HERE / "hook"))


def step() -> AbstractContextManager[None]:
    """Mark the end of a step: `esprof.step()`. With idle time between steps, as between the requests to a server, mark each
    step by a block: `with esprof.step(): …`.

    From the first call on, only these calls end steps, unless a window of optimizer steps has been recorded before. Of
    several threads the first caller counts until it ends, of nested blocks the outermost one. In code compiled by
    `torch.compile`, and in a process that is not recorded, this does nothing; it does not need torch then.
    """
    session = current_session()
    if session is None or session.recorder is None or sys.modules["torch"].compiler.is_compiling():
        return nullcontext()
    session.recorder.step()
    span: AbstractContextManager[None] = session.recorder.span()
    return span


def labels(targets: Any) -> None:
    """Count the labels of a batch that this rank trains on: `esprof.labels(targets)`, once for each batch.

    `targets` are whole numbers, one for each sample: a tensor on the CPU, an array or a sequence. Negative ones, such as
    -100, are ignored. The run stores a histogram for each rank, and `esprof diagnose` tells whether ranks train on other
    mixes of classes than chance explains (ESP112). In code compiled by `torch.compile`, and in a process that is not
    recorded, this does nothing; it does not need torch then.
    """
    session = current_session()
    if session is not None and session.recorder is not None and not sys.modules["torch"].compiler.is_compiling():
        session.recorder.labels.count(targets)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name a stage of the work, in a rank or in a DataLoader worker: `with esprof.stage("decode"):`, or as a decorator.

    The run stores its start and end or, while a batch is made, its total for each batch, and shows it among the profiler's
    events of a timed window. In code compiled by `torch.compile`, and in a process that is not recorded, this does nothing;
    it does not need torch then.
    """
    session = current_session()
    if session is None or sys.modules["torch"].compiler.is_compiling():
        yield
        return
    is_timed = session.recorder is not None and session.recorder.in_timed_window
    with sys.modules["torch"].profiler.record_function(name) if is_timed else nullcontext():
        start_ns = time.time_ns()
        with session.probe.making.part(name) as is_part:
            try:
                yield
            finally:
                if not is_part:
                    session.probe.note_stage((name, start_ns, time.time_ns()))


def current_session() -> Any:
    """Return the recorder's session of this process; None if it is not recorded."""
    module = sys.modules.get(f"{_GUEST}.recorder.injected.session")
    return module.current() if module is not None else None


def _require_torch() -> None:
    """Import torch, upon which the hook of `esprof record`, if present, starts its recorder. Raises
    MissingDependencyError."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "torch is not installed in this environment", remedy='pip install "esprof[torch]"'
        ) from error


def _begin(run: Path, settings: Settings) -> Any:
    """Start the recorder and return its session; None, with a message on stderr, if it does not work with this torch.

    Raises OutputError if `run` exists and is no Run, or cannot be written.
    """
    global _recorded
    try:
        injected = _load()
        rank, world_size = import_module(f"{_GUEST}.recorder.shared.identity").rank_and_world()
        raw = enter(run, settings, rank, world_size)
        _recorded = run.with_name(raw.parent.name)
        if _recorded != run and rank == 0:
            say(f"{run} is a Run already: recording into {_recorded}")
        injected.start(str(raw), str(_HERE / "hook"), lambda: None)
    except EsprofError:
        raise
    except Exception as fault:  # noqa: BLE001  a guest in somebody's training job must never break it
        say(f"process {os.getpid()} is not recorded: {fault!r}")
    return current_session()


def _load() -> Any:
    """Return the package `injected` under the name that the hook uses."""
    if _GUEST not in sys.modules:
        package = sys.modules[_GUEST] = ModuleType(_GUEST)
        package.__path__ = [str(_HERE.parent)]
    return import_module(f"{_GUEST}.recorder.injected")
