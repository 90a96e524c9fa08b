"""One window of torch.profiler over a few steps."""

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ...shared.environment import changed
from ...shared.torch_features import profiler_config
from .module_events import ModuleEvents

_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""Above all log levels that Kineto prints to stderr. Kineto reads the variable once, when it is first prepared."""

_STEP = "esprof.step#"
"""Prefix of a step's annotation. Not `ProfilerStep#`, with which a profiler of the job marks its own steps."""

_END = re.compile(rb'"traceName": ".*"[^{}\[\]]*\}\s*\Z')
"""End of a complete trace: its own path and, before torch 2.7, two numbers."""

_MAX_END_BYTES = 8192


class ProfilerWindow:
    """Events of consecutive steps, exported to `path` as a Kineto trace.

    `prepare` may be called steps before `start`: the profiler's own start-up cost then falls outside the window.
    """

    at_work = False
    """Whether a window, not the job, is currently using a profiler."""

    def __init__(self, path: str, *, shapes: bool, memory: bool = False, modules: ModuleEvents | None = None) -> None:
        self._path = path
        self._modules = modules
        self._step: record_function | None = None
        self._started = False
        self.is_closed = False
        self._profile = profile(
            activities=_activities(),
            record_shapes=shapes,
            profile_memory=memory,
            acc_events=True,  # Without this some versions warn that events of other cycles are dropped; there is only one.
            experimental_config=profiler_config(
                enable_cuda_sync_events=True,
                # Unused on a CPU; on a GPU they identify the call that launched a kernel.
                disable_external_correlation=not torch.cuda.is_initialized(),
                trace_only=True,  # Building the profiler's own list of events takes longer than writing the trace.
            ),
        )

    def prepare(self) -> None:
        with _at_work(), changed({} if "KINETO_LOG_LEVEL" in os.environ else _QUIET):
            self._profile.prepare_trace()

    def start(self) -> None:
        with _at_work():
            self._profile.start_trace()
        self._started = True
        if self._modules is not None:
            self._modules.start()

    def begin_step(self, step: int) -> None:
        """End the running step's annotation and begin that of `step`."""
        self.end_step()
        if self._modules is not None:
            self._modules.begin_step()
        self._step = record_function(f"{_STEP}{step}")
        self._step.__enter__()

    def close(self, *, keep: bool) -> None:
        """Stop, and write the trace if `keep`: completely under its name, or not at all."""
        self.is_closed = True
        self._stop_modules()
        self.end_step()
        with _at_work():
            if not self._started:
                self._profile.start_trace()  # A prepared profiler must be started before it can be stopped.
            self._profile.stop_trace()
            if keep:
                self._export()

    def let_go_in_child(self) -> None:
        """In a forked child, which inherits the running profiler: collect nothing there.

        A loader worker would otherwise store kilobytes per operation until its end. Stopping the profiler instead would use
        the GPU, which a forked child must not do.
        """
        self._stop_modules()
        if self._started:
            torch._C._autograd._clear_callbacks()  # type: ignore[attr-defined]

    def _stop_modules(self) -> None:
        if self._modules is not None:
            self._modules.stop()

    def _export(self) -> None:
        temporary = f"{self._path}.part"
        try:
            self._profile.export_chrome_trace(temporary)
            _check_complete(temporary)
            os.chmod(temporary, 0o600)
            os.replace(temporary, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def end_step(self) -> None:
        """End the running step's annotation, if one runs."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


@contextmanager
def _at_work() -> Iterator[None]:
    ProfilerWindow.at_work = True
    try:
        yield
    finally:
        ProfilerWindow.at_work = False


class ThreadsEnd:
    """Stops a window that is still open when its thread ends, if the thread holds the only reference to this.

    Where a profiler outlives its thread, PyTorch keeps a dangling callback, and crashes when the process exits.
    """

    def __init__(self, window: ProfilerWindow) -> None:
        self._window = window

    def __del__(self) -> None:
        if not self._window.is_closed:
            with suppress(Exception):  # The job must not see it.
                self._window.close(keep=False)


def _check_complete(path: str) -> None:
    """Raise OSError if the trace is truncated or missing: the exporter reports no error when the disk is full."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _MAX_END_BYTES))
            is_complete = _END.search(file.read()) is not None
    except FileNotFoundError:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # Raises the error if the folder is not writable.
        is_complete = False
    if not is_complete:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: the trace could not be written whole", path)


def _activities() -> list[ProfilerActivity]:
    """The activities to record: CUDA only where the job has initialised it, as asking for it would initialise it."""
    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []
    return [ProfilerActivity.CPU, *cuda]


def leave_without_kineto() -> None:
    """In a forked child of a rank: at its exit flush C's streams, and end before any handler from before the fork runs.

    Kineto keeps a thread and, when a process exits, waits for it. A forked child does not have that thread and would wait
    forever if the process has used a profiler before the fork, of the recorder or its own.

    Both calls are functions of glibc, since Python is gone by then. The exit status stays as it is.
    """
    with suppress(AttributeError, OSError):  # With another libc the child behaves as it would without the recorder.
        libc = ctypes.CDLL(None)
        # The last to be registered is the first to run.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
