"""The recorder of one process: its parts, put together."""

import atexit
import os
from collections.abc import Callable

from .environment import LOADER_OF
from .loader import LoaderProbe
from .log import Log
from .recorder import Recorder
from .settings import Settings
from .switch import Switch


def begin(raw: str, hook: str, leave_environment: Callable[[], None]) -> None:
    """Watch the DataLoaders of this process, and its optimizers unless it is a DataLoader's worker itself."""
    log = Log()
    probe = LoaderProbe(raw, hook, log, Switch("recording of DataLoaders", log))
    owner = os.environ.pop(LOADER_OF, None)
    if owner is not None:
        leave_environment()
        probe.install_in_worker(owner)
        return
    open(os.path.join(raw, f"torch.{os.getpid()}"), "a").close()
    recorder = Recorder(raw, Settings.read(raw), log, leave_environment)
    recorder.install()
    probe.install()
    atexit.register(recorder.finish)
