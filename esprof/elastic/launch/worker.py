"""The worker's side of a launch, in the training process."""

import os
import time
import warnings
from itertools import pairwise

from esprof.core.errors import EsprofError, UsageError
from esprof.core.types import Ns, Rank
from esprof.elastic.launch.messages import Launch, Left, launch_of_environment, write_left
from esprof.run.logs import JobEvent


class Launched:
    """The connection of a trainer to the launcher of its process; does nothing without an esprof launcher."""

    def __init__(self) -> None:
        self._launch: Launch | None = launch_of_environment()
        self._begins_ns: Ns = time.time_ns()
        self._made_ns: Ns | None = None
        self._has_stepped = False

    @property
    def is_launched(self) -> bool:
        return self._launch is not None

    def check_world(self, wanted: int, world: int, *, saves: bool) -> None:
        """Raise UsageError if a job cannot change from `world` to `wanted` processes; `saves` is whether it has a
        checkpoint folder."""
        if wanted == world:
            return
        launch, said = self._launch, f"it is for {wanted} processes, and here are {world}"
        if launch is None:
            raise UsageError(
                f"{said}: only a job started by `esprof elastic launch` can change its number of processes"
            )
        if launch.most is None:
            raise UsageError(f"{said}: torchrun sets the number of hosts of this job")
        if not 1 <= wanted <= launch.most:
            raise UsageError(f"{said}: its launcher allows 1 to {launch.most}")
        if not saves:
            raise UsageError(f"{said}: the job has no checkpoint folder and would restart at step 0")

    def made(self) -> None:
        """Note that the trainer was created, from the last checkpoint if there is one."""
        self._made_ns = time.time_ns()

    def stepped(self, step: int, world: int) -> JobEvent | None:
        """The event of the first step after a change of generation: the change and its duration. None for other steps."""
        if self._has_stepped:
            return None
        self._has_stepped, launch = True, self._launch
        if launch is None or launch.world_before is None or self._made_ns is None:
            return None
        names = ("save", "start", "process group", "restore", "first step")
        moments = [launch.stopped_ns, launch.left_ns, launch.started_ns, self._begins_ns, self._made_ns, time.time_ns()]
        known = [moment for moment in moments if moment is not None]
        phases = {name: (after - before) / 1e3 for name, (before, after) in zip(names, pairwise(known), strict=True)}
        change = f"from {launch.world_before} to {world} processes"
        return JobEvent(what="scaled", step=step, phases_us=phases, reason=f"{change}: {launch.why}")

    def hears(self, rank: Rank) -> bool:
        """Whether this rank reports to its launcher: rank 0 to a controller, and with one launcher per host the first
        process of each host."""
        if self._launch is None:
            return False
        return rank == 0 if self._launch.most is not None else os.environ.get("LOCAL_RANK", "0") == "0"

    def left(self, message: Left) -> None:
        """Report to the launcher that all ranks have saved."""
        if self._launch is None:
            return
        try:
            write_left(self._launch, message)
        except EsprofError as error:
            warnings.warn(f"the launcher cannot be notified of the checkpoint: {error}", stacklevel=3)
