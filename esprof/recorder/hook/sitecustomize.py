"""Runs at the start of every Python process of a recorded job, because its folder stands first in PYTHONPATH.

It waits for torch to be imported and then loads the recorder; a process that never imports torch stays as it was.
The recorder is found by its place on disk, so the job's interpreter need not have esprof installed.
"""

import os
import stat
import sys
from importlib.machinery import ModuleSpec, PathFinder

HOOK = os.path.dirname(os.path.abspath(__file__))
VARIABLE = "ESPROF_RUN"


class WhenTorchLoads:
    """An import finder that starts the recorder when torch is loaded, and then is gone; only to ask for torch leaves it."""

    def __init__(self, raw: str) -> None:
        self.raw = raw
        self.asks = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch" or self.asks:
            return None
        from importlib.util import find_spec

        self.asks = True
        try:
            spec = find_spec("torch")
        finally:
            self.asks = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_record(module):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                start_recorder(self.raw)

            spec.loader.exec_module = load_and_record  # type: ignore[method-assign]
        return spec


def start_recorder(raw: str) -> None:
    """Make the folder of esprof the top-level package `esprof_guest`, and start what the recorder injects.

    The package runs no `__init__.py` of esprof, and the job's own `esprof`, of this version or another, stays apart.
    """
    from importlib import import_module
    from types import ModuleType

    try:
        package = sys.modules["esprof_guest"] = ModuleType("esprof_guest")
        package.__path__ = [os.path.dirname(os.path.dirname(HOOK))]
        import_module("esprof_guest.recorder.injected").start(raw, HOOK, leave_environment)
    except Exception as fault:  # noqa: BLE001  a guest in somebody's training job must never break it
        say(f"process {os.getpid()} is not recorded: {fault!r}")


def say(message: str) -> None:
    """Print a line on stderr, if that works."""
    try:
        if sys.stderr is not None:
            print(f"esprof: {message}", file=sys.stderr)
    except (OSError, ValueError):
        pass


def leave_environment() -> None:
    """Take the hook out of what the children of this process inherit."""
    os.environ.pop(VARIABLE, None)
    path = [entry for entry in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if entry != HOOK]
    if any(path):
        os.environ["PYTHONPATH"] = os.pathsep.join(path)


def is_ours(folder: str) -> bool:
    """Whether `folder` is one that only this user can have put there and can write to."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def enter() -> None:
    """Wait for torch, if a recording is going on.

    A worker that a launcher started (LOCAL_RANK) hides the hook from its children. Any other process has to pass it
    on, as it may be that launcher, until it turns out to train itself.
    """
    run = os.environ.get(VARIABLE, "")
    raw = os.path.join(run, "raw") if run else ""
    if "LOCAL_RANK" in os.environ:
        leave_environment()
    if raw and is_ours(raw):
        os.close(os.open(os.path.join(raw, f"python.{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        if "torch" in sys.modules:
            start_recorder(raw)
        else:
            sys.meta_path.insert(0, WhenTorchLoads(raw))


def chain() -> None:
    """Run the sitecustomize that this one hides, as if this one were not there."""
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if entry != HOOK]
try:  # noqa: SIM105  contextlib would be one import more in every Python process
    enter()
except OSError:
    pass  # The recording's folder went away or its disk is full: nothing is recorded here; the job continues.
chain()
