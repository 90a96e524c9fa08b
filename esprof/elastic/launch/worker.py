"""The end of a launch that is in the training process."""

import os
import time
import warnings
from itertools import pairwise

from esprof.core.errors import EsprofError, UsageError
from esprof.core.types import Ns, Rank
from esprof.elastic.launch.messages import Launch, Left, launch_of_environment, write_left
from esprof.run.logs import JobEvent


class Launched:
    """What a trainer knows of the launcher of its process, and tells it; of none, where no launcher of ours started it."""

    def __init__(self) -> None:
        self._launch: Launch | None = launch_of_environment()
        self._begins_ns: Ns = time.time_ns()
        self._made_ns: Ns | None = None
        self._has_stepped = False

    @property
    def is_launched(self) -> bool:
        return self._launch is not None

    def check_world(self, wanted: int, world: int, *, saves: bool) -> None:
        """Raise UsageError where a job of `world` processes cannot become one of `wanted`; `saves` is whether it has a
        folder for checkpoints."""
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
        """The trainer is made, from the last checkpoint where there is one."""
        self._made_ns = time.time_ns()

    def stepped(self, step: int, world: int) -> JobEvent | None:
        """What the first step of a generation that follows another one has to tell: the change, and what it took."""
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
        """Whether this rank's launcher hears from it of the job: one controller does from rank 0, and on each of several
        hosts the launcher does from the host's first process."""
        if self._launch is None:
            return False
        return rank == 0 if self._launch.most is not None else os.environ.get("LOCAL_RANK", "0") == "0"

    def left(self, message: Left) -> None:
        """All has been saved, on all ranks."""
        if self._launch is None:
            return
        try:
            write_left(self._launch, message)
        except EsprofError as error:
            warnings.warn(f"the launcher cannot be notified of the checkpoint: {error}", stacklevel=3)
