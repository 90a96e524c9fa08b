"""The recorder of one process and its components."""

import os
from collections.abc import Callable

from ...run.raw import names
from ...run.raw.new_files import touch
from ...run.raw.settings import Settings
from ..shared.environment import LOADER_OF
from ..shared.torch_features import switch_on_flight_recorders
from .hang.startup import StartupWatch
from .knobs import Knobs
from .log.circuit_breaker import CircuitBreaker
from .log.notes import Log
from .recorder import Recorder
from .steps.garbage import CollectionProbe
from .steps.loader import LoaderProbe
from .steps.messages import MessageProbe, PipelineProbe
from .steps.opened_files import OpenedFiles
from .steps.saves import SaveProbe


class Session:
    """Components of the recorder in this process. In a DataLoader worker `recorder` is None."""

    def __init__(self, log: Log, probe: LoaderProbe, recorder: Recorder | None) -> None:
        self.log = log
        self.probe = probe
        self.recorder = recorder


_current: Session | None = None


def current() -> Session | None:
    """The session of this process; None if it is not recorded."""
    return _current


def begin(raw: str, hook: str, leave_environment: Callable[[], None]) -> Session:
    """Watch the DataLoaders of this process and, unless it is a DataLoader worker, its optimizers."""
    global _current
    log = Log()
    settings = Settings.read(raw)
    breaker = CircuitBreaker("recording of DataLoaders", log)
    probe = LoaderProbe(raw, hook, log, breaker, settings.max_log, sample_keys=settings.sample_keys)
    if settings.probe_s:
        OpenedFiles(raw).install()
    owner = os.environ.pop(LOADER_OF, None)
    if owner is not None:
        leave_environment()
        probe.install_in_worker(owner)
        _current = Session(log, probe, None)
        return _current
    touch(os.path.join(raw, names.torch_of(os.getpid())))
    switch_on_flight_recorders()
    saves = SaveProbe(probe.note_stage, CircuitBreaker("recording of saves", log))
    startup = StartupWatch(raw, settings, log)
    knobs = Knobs(settings.knobs, log)
    recorder = Recorder(raw, settings, log, leave_environment, saves, startup, knobs)
    knobs.install()
    recorder.install()
    startup.install()
    probe.install(recorder.pace.batch_wanted)
    messages = CircuitBreaker("recording of messages", log)
    messages.run(MessageProbe(messages).install)
    passes = CircuitBreaker("recording of pipelines", log)
    passes.run(PipelineProbe(passes).install)
    CollectionProbe(recorder.state, probe.note_stage, recorder.sample_at).install()
    _current = Session(log, probe, recorder)
    return _current
