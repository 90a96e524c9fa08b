"""Follows the job from optimizer step to optimizer step, and opens and closes the profiler's windows on the way."""

import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import identity
from .log import Log
from .settings import Settings
from .switch import Switch
from .window import Window, on_foreign_use


class Recorder:
    """Makes this process a recorded rank at its first optimizer step, and notes every step from then on.

    All its work at a step's border falls into the step that begins there.
    """

    def __init__(self, raw: str, settings: Settings, log: Log, leave_environment: Callable[[], None]) -> None:
        self._raw = raw
        self._settings = settings
        self._log = log
        self._switch = Switch("recording", log, self._drop_window)
        self._leave_environment = leave_environment
        self._pacer: weakref.ref[Optimizer] | None = None
        self._rank = 0
        self._step = 0
        self._start_ns = 0
        self._window: Window | None = None
        self._window_from = 0
        self._profiler_is_ours = True

    def install(self) -> None:
        def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._switch.run(self._on_optimizer_step, optimizer)

        # A compiled training step must not try to trace the hook: this mark makes dynamo call it as it is.
        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        register_optimizer_step_post_hook(after_step)
        on_foreign_use(lambda: self._switch.run(self._yield_profiler))
        os.register_at_fork(after_in_child=lambda: self._switch.run(self._let_go_in_child))

    def finish(self) -> None:
        """Close what is open: the job ends, by itself or by an exception."""
        self._switch.run(self._finish)

    def _on_optimizer_step(self, optimizer: Optimizer) -> None:
        now = time.time_ns()
        if not self._paces(optimizer):
            return
        if self._step == 0:
            self._become_rank()
        if not self._log.mine:
            return
        if self._step > 0:
            self._note_step(now)
        self._step += 1
        self._start_ns = now
        if self._profiler_is_ours:
            self._drive_windows()

    def _paces(self, optimizer: Optimizer) -> bool:
        """Of several optimizers the first that steps tells the steps of the job, as long as it lives."""
        if self._pacer is None or self._pacer() is None:
            self._pacer = weakref.ref(optimizer)
        return self._pacer() is optimizer

    def _become_rank(self) -> None:
        self._leave_environment()
        self._rank, world_size = identity.rank_and_world()
        name = identity.process_name()
        try:
            self._log.open(os.path.join(self._raw, f"rank-{self._rank:05d}.jsonl"))
        except FileExistsError:
            # Another process of the job is this rank already: an earlier life of it, or a second training.
            open(os.path.join(self._raw, f"again-{self._rank:05d}.{name}"), "x").close()
            self._switch.on = False
            return
        device, accelerators = identity.device()
        self._log.write(
            "rank",
            rank=self._rank,
            world_size=world_size,
            host=name.rsplit(".", 2)[0],
            pid=os.getpid(),
            device=device,
            accelerators=accelerators,
            versions=identity.versions(),
        )

    def _note_step(self, now: int) -> None:
        phase = self._settings.phase(self._step)
        self._log.write("step", step=self._step, start_ns=self._start_ns, dur_ns=now - self._start_ns, phase=phase)

    def _drive_windows(self) -> None:
        """Open, start or close a window where the step that begins here calls for it."""
        step, plan = self._step, self._settings
        if step in (plan.after_timed, plan.after_stack):
            self._close_window()
        if step == plan.skip:
            self._open_window("timed", plan.first_timed)
        if self._window and step == max(plan.skip, plan.first_timed - 1):
            # A step early, so that no rank's first timed step holds the start of another rank's profiler.
            self._window.start()
        if step == plan.first_stack and plan.stack_steps:
            self._log.write("running", frames=_running_frames())
            self._open_window("stack", step).start()
        if self._window and plan.phase(step) in ("timed", "stack"):
            self._window.begin_step(step)

    def _open_window(self, phase: str, first: int) -> Window:
        path = os.path.join(self._raw, f"rank-{self._rank:05d}.{phase}.json")
        self._window = Window(path, stacks=phase == "stack")
        self._window_from = first
        self._window.prepare()
        return self._window

    def _close_window(self) -> None:
        """Close the open window, and keep it if it holds a whole step."""
        phase, last = self._settings.phase(self._window_from), self._step - 1
        if self._window is None or last < self._window_from:
            self._drop_window()
            return
        window, self._window = self._window, None
        window.close(keep=True)
        self._log.write("window", phase=phase, first=self._window_from, last=last)
        self._note_memory()

    def _drop_window(self) -> None:
        """Stop a profiler that would otherwise collect events to the end of the job."""
        window, self._window = self._window, None
        if window is not None:
            window.close(keep=False)

    def _let_go_in_child(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            window.let_go_in_child()

    def _note_memory(self) -> None:
        peak, of = identity.peak_memory()
        self._log.write("memory", peak=peak, of=of)

    def _yield_profiler(self) -> None:
        if self._profiler_is_ours:
            self._profiler_is_ours = False
            if not self._settings.is_over(self._step):
                self._log.write("profiler-taken", step=self._step)
            self._close_window()

    def _finish(self) -> None:
        if not self._log.mine:
            return
        with _undisturbed():
            self._close_window()
            self._note_memory()


def _running_frames() -> list[tuple[str, int, int]]:
    """(function, current line, first line) of what this thread is in the middle of, innermost first."""
    walked = traceback.walk_stack(sys._getframe(1))
    return [(frame.f_code.co_name, line, frame.f_code.co_firstlineno) for frame, line in walked]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold off the signals that end a process, while it ends anyway.

    A launcher passes on the Ctrl-C that the terminal has sent to all already, and ends the other ranks when one fails.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
