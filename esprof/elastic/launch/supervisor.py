"""A controller that starts a job's workers, and a new generation of them to change their number.

The old workers are asked to leave, save, and report that in the launch folder; then the new ones start the script. If these
were started in advance and are ready, training stops only for the checkpoint.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from esprof.core.errors import EsprofError, UsageError
from esprof.core.types import Ns
from esprof.elastic.launch.generation import Generation, WorkerSlot, environment
from esprof.elastic.launch.messages import (
    LAUNCH_LOG,
    Launch,
    LaunchState,
    Left,
    Logged,
    grant,
    read_left,
    remove_left,
    taken,
    wanted,
    write_state,
)

_POLL_INTERVAL_S = 0.02
_EARLY_CRASH_WITHIN_S = 30.0
"""Crashes sooner than this after the start count as quick crashes."""


@dataclass(frozen=True)
class SupervisorSettings:
    """How a job is supervised."""

    warm: bool = True
    """Whether to start new workers before the old ones are asked to leave; both are in memory for a short time."""
    most_crashes: int = 3
    """Quick crashes in a row after which the launcher gives up."""


@dataclass(frozen=True)
class _Next:
    """The next generation: its number of workers, and its reason."""

    world: int
    why: str
    stopped_ns: Ns


class Supervisor:
    """Runs `script` (a file or `-m MODULE`, with its arguments) on the first `world` of `slots`, until it has ended."""

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        script: Sequence[str],
        folder: Path,
        settings: SupervisorSettings = SupervisorSettings(),
        *,
        env: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` is called with a line of text for each event. Raises UsageError if there is nothing to run."""
        if not script or script == ["-m"]:
            raise UsageError("no script to run")
        if not slots:
            raise UsageError("the launcher has no slot for a worker")
        self._slots, self._script, self._folder = tuple(slots), tuple(script), folder
        self._settings, self._env, self._say = settings, environment(env or {}), say
        self._number = 0
        self._crashes = 0
        self._stops = 0
        """Number of requests to end the job."""
        self._has_saved = False
        """Whether the previous generation has saved all its steps."""
        self._standby: Generation | None = None
        self._asked: _Next | None = None
        """The next generation for which the running one was asked to leave."""

    def run(self, world: int) -> int:
        """Start with `world` workers. Returns the exit code of the job: that of its last generation, 128 + N for signal N.

        SIGTERM and SIGINT make the job save and leave, with exit code 0; a second one ends it at once. Raises UsageError
        for a world without enough slots, OutputError where the folder cannot be written.
        """
        if not 1 <= world <= len(self._slots):
            raise UsageError(f"the launcher allows 1 to {len(self._slots)} processes, not {world}")
        with self._hearing(), taken(self._folder):
            running, launch, before = self._start(0, world), self._launch(), None
            try:
                while True:
                    self._begin(running, launch, before)
                    following = self._watched(running)
                    if isinstance(following, int):
                        return following
                    before, (running, launch) = running, self._followed(running, following)
            finally:
                running.kill()
                if before is not None:
                    before.kill()
                self._drop_standby()

    def _launch(self, **more: object) -> Launch:
        return Launch(folder=str(self._folder.absolute()), generation=self._number, most=len(self._slots), **more)  # type: ignore[arg-type]

    def _start(self, number: int, world: int) -> Generation:
        return Generation(number, self._slots[:world], self._script, self._folder, self._env)

    def _wait(self, generation: Generation) -> None:
        """Wait until all workers are ready or one is dead, which is handled after the start."""
        while not generation.is_ready and all(code is None for code in generation.codes()) and not self._stops:
            time.sleep(_POLL_INTERVAL_S)

    def _begin(self, running: Generation, launch: Launch, before: Generation | None) -> None:
        """Start a generation. The previous one has saved or is dead, and ends concurrently."""
        self._wait(running)
        if not self._stops:
            running.begin(launch)
        self._log("began", running.world, launch.why)
        try:
            write_state(
                self._folder,
                LaunchState(pid=os.getpid(), generation=self._number, world=running.world, most=len(self._slots)),
            )
        except EsprofError:
            if before is None:
                raise
        if before is not None and not self._stops:
            before.end()

    def _watched(self, running: Generation) -> int | _Next:
        """Supervise a generation to its end. Returns the exit code of the job, or the next generation."""
        began_s, sent_stops, self._asked = time.monotonic(), 0, None
        while True:
            if self._stops > 1:
                running.kill()
            elif self._stops > sent_stops:
                sent_stops = self._stops
                running.send(signal.SIGTERM)
            codes = running.codes()  # Read before their messages, which workers write before they exit.
            if (left := read_left(self._folder, self._number)) is not None and not self._stops:
                return self._next_of(left, running)
            if all(code == 0 for code in codes) or (self._stops and None not in codes):
                return self._ended(running, codes)
            if any(code not in (0, None) for code in codes) and not self._stops:
                return self._crashed(running, codes, time.monotonic() - began_s)
            if not self._stops:
                self._change(running)
            time.sleep(_POLL_INTERVAL_S)

    def _change(self, running: Generation) -> None:
        """If another number of workers is requested: start them, and ask the running ones to leave once these are ready."""
        world = wanted(self._folder)
        if self._asked is not None or world is None or world == running.world or not 1 <= world <= len(self._slots):
            if self._asked is None:  # The request was withdrawn.
                self._drop_standby()
            return
        if self._settings.warm:
            if self._standby is None or self._standby.world != world:
                self._drop_standby()
                try:
                    self._standby = self._start(self._number + 1, world)
                except UsageError as error:
                    self._give_up_wish(world, error.reason)
                    return
            if any(code is not None for code in self._standby.codes()):
                self._drop_standby()
                self._give_up_wish(world, "a process ended before it was ready")
                return
            if not self._standby.is_ready:
                return
        grant(self._folder)
        self._asked = _Next(world, "it was asked for", time.time_ns())
        self._log("asked", running.world, f"{world} processes are wanted")
        running.send(signal.SIGTERM)

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._standby.kill()
            self._standby = None

    def _give_up_wish(self, world: int, why: str) -> None:
        """Refuse a request. The job continues unchanged."""
        grant(self._folder)
        self._say(f"cannot start {world} processes: {why}; the job continues with its present number")
        self._log("refused", world, why)

    def _next_of(self, left: Left, running: Generation) -> _Next:
        """The generation after one that has saved."""
        self._crashes, self._has_saved = 0, True
        self._log("left", running.world, left.reason)
        if self._asked is not None:
            return _Next(self._asked.world, self._asked.why, left.stopped_ns)
        grant(self._folder)  # A plan is newer than an open request.
        return _Next(left.world or running.world, left.reason, left.stopped_ns)

    def _crashed(self, running: Generation, codes: Sequence[int | None], lived_s: float) -> int | _Next:
        stopped_ns, self._has_saved = time.time_ns(), False
        code = next(code for code in codes if code not in (0, None))
        running.kill()
        how = f"a process was killed by signal {-code}" if code < 0 else f"a process exited with code {code}"
        self._log("crashed", running.world, how)
        self._crashes = self._crashes + 1 if lived_s < _EARLY_CRASH_WITHIN_S else 0
        if self._crashes >= self._settings.most_crashes:
            self._say(f"{how}; giving up after {self._crashes} crashes in a row")
            self._log("gave up", running.world, how)
            return 128 - code if code < 0 else code
        self._say(f"{how}: resuming from the last checkpoint")
        world = running.world if self._asked is None else self._asked.world
        return _Next(world, how, stopped_ns)

    def _ended(self, running: Generation, codes: Sequence[int | None]) -> int:
        worst = next((code for code in codes if code not in (0, None)), 0)
        saved = read_left(self._folder, self._number) is not None
        if self._stops == 1 and (saved or (self._has_saved and not running.has_started)):
            worst = 0  # It has saved and left as requested; or all was saved before, and it had not started.
        self._log("ended", running.world)
        return 128 - worst if worst < 0 else worst

    def _followed(self, before: Generation, following: _Next) -> tuple[Generation, Launch]:
        """Create the generation after one that has left or is dead."""
        left_ns = time.time_ns()
        remove_left(self._folder, self._number)
        self._number += 1
        running, self._standby = self._standby, None
        if running is None or running.world != following.world:
            if running is not None:
                running.kill()
            running = self._start(self._number, following.world)
        if before.world != following.world:
            self._say(f"the job goes from {before.world} to {following.world} processes: {following.why}")
        self._wait(running)
        launch = self._launch(
            world_before=before.world,
            why=following.why,
            stopped_ns=following.stopped_ns,
            left_ns=left_ns,
            started_ns=time.time_ns(),
        )
        return running, launch

    def _log(self, what: str, world: int, why: str = "") -> None:
        """Append to the log. If that fails, the job continues."""
        with suppress(EsprofError):
            line = Logged(what=what, time_ns=time.time_ns(), generation=self._number, world=world, why=why)  # type: ignore[arg-type]
            LAUNCH_LOG.append(self._folder, line)

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Count SIGTERM and SIGINT instead of ending by them."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stops += 1

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
