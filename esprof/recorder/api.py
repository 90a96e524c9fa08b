"""Recording from a job's own code: `record`, `step` and `stage`; and of processes that something else starts: `environment`.

A process runs one copy of the recorder's own code (`injected`), within the package `esprof_guest`: the one that
`esprof record` has brought in, or the one that `record` loads here. Only `record` imports torch.
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
"""The run that this process records, or has recorded, by `record`."""


@contextmanager
def record(run: str | os.PathLike[str] | None = None, **settings: Any) -> Iterator[None]:
    """Record this process into the directory `run` while the block lasts; without one, into that of the variable ESPROF_RUN.

    Every rank of a job calls this with the same `run`, on a shared or each host's own disk, once its process group exists.
    `settings` are the fields of `Settings`, named as the options of `esprof record`: `skip`, `warmup`, `steps`,
    `stack_steps` and `every` count steps, `skip_s` and `every_s` seconds. A step ends where an optimizer has stepped, or
    where the job calls `step`.

    Whatever opens the run first afterwards, such as `esprof.load(run)` or `esprof diagnose run`, completes it. In a job that
    `esprof record` records already this does nothing, and says so.

    Raises OutputError where `run` is taken, UsageError in a process that was recorded before or without a run, ValueError or
    TypeError for settings that make no sense, MissingDependencyError without torch. Once the block is entered no fault of
    the recorder reaches the job.
    """
    if _recorded is not None:
        raise UsageError(f"was recorded already, into {_recorded}", remedy="A process can be recorded once.")
    _require_torch()
    if _session() is not None:
        if os.environ.get("RANK", "0") == "0":
            say(f"recorded from outside already; record({'' if run is None else repr(str(run))}) does nothing")
        yield
        return
    if run is None and RUN not in os.environ:
        raise UsageError(f"no run to record into: neither `run` nor {RUN} is given")
    session = _begin(Path(run or os.environ[RUN]), Settings(**settings))
    try:
        yield
    finally:
        if session is not None:
            session.recorder.finish()
            session.probe.stop()


def environment(run: str | os.PathLike[str], **settings: Any) -> dict[str, str]:
    """Make the directory `run`, and return the variables (ESPROF_RUN, PYTHONPATH) with which Python processes are recorded
    into it, whatever starts them: a scheduler, Ray, or a person by hand.

    Their scripts stay as they are. Each has to be told its rank, as by RANK and WORLD_SIZE, or by the process group that it
    joins; on other hosts `run` and esprof have to be at the same place. `settings` are those of `record`. Whatever opens the
    run once all have ended completes it.

    Raises OutputError where `run` is there already or cannot be made, ValueError or TypeError for settings that make no
    sense.
    """
    return with_hook(os.environ, str(open_to_all(Path(run), Settings(**settings))), str(_HERE / "hook"))


def step() -> AbstractContextManager[None]:
    """Say that a step of the job ends here: `esprof.step()`; or, where steps do not follow one another, as the requests to a
    server do not, that the block is one: `with esprof.step(): …`.

    From the first call on nothing else ends steps, unless a window of an optimizer's steps has been recorded by then. Of
    several threads the first that calls this counts, until it has ended, and of blocks within one another the outer one. In
    code that `torch.compile` compiles this does nothing. Where nothing records it does nothing either, and needs no torch.
    """
    session = _session()
    if session is None or session.recorder is None or sys.modules["torch"].compiler.is_compiling():
        return nullcontext()
    session.recorder.step()
    span: AbstractContextManager[None] = session.recorder.span()
    return span


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name a part of the work, in a rank or in a DataLoader's worker: `with esprof.stage("decode"):`, or as a decorator.

    The run lists when the stage began and ended, and shows it among the profiler's events of a timed window. In code that
    `torch.compile` compiles this does nothing. Where nothing records it does nothing either, and needs no torch.
    """
    session = _session()
    if session is None or sys.modules["torch"].compiler.is_compiling():
        yield
        return
    is_timed = session.recorder is not None and session.recorder.in_timed_window
    with sys.modules["torch"].profiler.record_function(name) if is_timed else nullcontext():
        start_ns = time.time_ns()
        try:
            yield
        finally:
            session.probe.note_stage((name, start_ns, time.time_ns()))


def _session() -> Any:
    """The recorder's session of this process, if it is recorded."""
    module = sys.modules.get(f"{_GUEST}.recorder.injected.session")
    return module.current() if module is not None else None


def _require_torch() -> None:
    """Import torch; the hook of `esprof record`, where there is one, then starts its recorder. Raises
    MissingDependencyError."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("torch is not installed here", remedy='pip install "esprof[torch]"') from error


def _begin(run: Path, settings: Settings) -> Any:
    """Start the recorder and return its session; None, with a line on stderr, where it does not work with this torch.

    Raises OutputError where `run` is taken or cannot be written.
    """
    global _recorded
    try:
        injected = _load()
        rank, world_size = import_module(f"{_GUEST}.recorder.shared.identity").rank_and_world()
        raw = enter(run, settings, rank, world_size)
        _recorded = run
        injected.start(str(raw), str(_HERE / "hook"), lambda: None)
    except EsprofError:
        raise
    except Exception as fault:  # noqa: BLE001  a guest in somebody's training job must never break it
        say(f"process {os.getpid()} is not recorded: {fault!r}")
    return _session()


def _load() -> Any:
    """The package `injected`, under the name by which the hook would load it."""
    if _GUEST not in sys.modules:
        package = sys.modules[_GUEST] = ModuleType(_GUEST)
        package.__path__ = [str(_HERE.parent)]
    return import_module(f"{_GUEST}.recorder.injected")
