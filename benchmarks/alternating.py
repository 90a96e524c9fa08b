"""Train with the recorder alternately on and off, and log the time of each step.

    python -m torch.distributed.run … -m benchmarks.alternating OUT BLOCK MODULE [ARGUMENTS…]

Runs MODULE as a program, in a process with the recorder as under `esprof record`, but without windows. Every BLOCK steps,
the hooks of the recorder in PyTorch are removed or restored: after the optimizer's step, in the loader's `next`, and in
`backward`. Neighbouring blocks run under the same load of the machine, unlike two processes.

Each rank writes OUT/rank-N.json, a `Blocks`.
"""

import os
import runpy
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer, optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from esprof.recorder.injected import session
from esprof.recorder.launcher.launch import HOOK
from esprof.run.raw.settings import Settings


@dataclass
class Blocks:
    """Duration of each step, with the recorder on or off; each list has one entry per step."""

    on: list[bool] = field(default_factory=list)
    """Whether the recorder was on in each step."""
    step_ns: list[int] = field(default_factory=list)
    """Wall time of each step."""
    cpu_ns: list[int] = field(default_factory=list)
    """CPU time of the training thread in each step, in which other work on the machine does not count."""
    border_ns: list[int] = field(default_factory=list)
    """Wall time of the optimizer's hook at the end of the step before each."""
    next_ns: list[int] = field(default_factory=list)
    """Wall time of the loader's `next` in each step, less that of the loader's own code."""
    background_writer_cpu_s: float = 0.0
    """CPU time of the recorder's background writer over the whole job."""
    sampler_cpu_s: float = 0.0
    """CPU time of the thread that samples stacks; it does so in the steps with the recorder alone."""
    seconds: float = 0.0
    """Wall time of all steps."""


class Alternation:
    """Removes and restores the hooks of the recorder."""

    def __init__(self, raw: Path, block: int) -> None:
        self.blocks = Blocks()
        self._block = block
        self._on = True
        self._began_ns, self._began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._next_ns = 0
        self._border_ns = 0
        self._time_next(sign=-1)
        without = _BaseDataLoaderIter.__next__, torch.autograd.backward
        raw.mkdir(mode=0o700, parents=True)
        Settings(windows=False, hang_s=0).write(str(raw))
        recorder = session.begin(str(raw), str(HOOK), lambda: None).recorder
        assert recorder is not None
        self._state = recorder.state
        (self._number, self._hook), *_ = optimizer._global_optimizer_post_hooks.items()
        self._with = _BaseDataLoaderIter.__next__, torch.autograd.backward
        self._without = without
        self._hang(self._with)
        # Ours calls the recorder's: a table of hooks may not change while PyTorch walks through it.
        optimizer._global_optimizer_post_hooks[self._number] = self._after_step

    def close(self) -> None:
        self.blocks.background_writer_cpu_s, self.blocks.sampler_cpu_s = map(_cpu_s, ("esprof", "esprof-sampler"))

    def _after_step(self, stepped: Optimizer, args: Any, kwargs: Any) -> None:
        ended_ns, ended_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        if self._on:
            self._hook(stepped, args, kwargs)
        else:
            self._state.start_ns = time.time_ns()  # Otherwise hang detection would see the block as one slow step.
            self._state.thread = 0  # Do not sample stacks.
        returned_ns = time.perf_counter_ns()
        self._note(ended_ns, ended_cpu_ns)
        self._border_ns, self._next_ns = returned_ns - ended_ns, 0
        self._began_ns, self._began_cpu_ns = ended_ns, ended_cpu_ns
        if len(self.blocks.on) % self._block == 0:
            self._on = not self._on
            self._hang(self._with if self._on else self._without)

    def _note(self, ended_ns: int, ended_cpu_ns: int) -> None:
        blocks = self.blocks
        blocks.on.append(self._on)
        blocks.step_ns.append(ended_ns - self._began_ns)
        blocks.cpu_ns.append(ended_cpu_ns - self._began_cpu_ns)
        blocks.border_ns.append(self._border_ns)
        blocks.next_ns.append(self._next_ns)
        blocks.seconds += blocks.step_ns[-1] / 1e9

    def _hang(self, functions: tuple[Any, Any]) -> None:
        _BaseDataLoaderIter.__next__, torch.autograd.backward = functions  # type: ignore[method-assign]
        self._time_next(sign=1)

    def _time_next(self, sign: int) -> None:
        """Wrap the current `next` in a timer that adds its time to `_next_ns`, or subtracts it if `sign` is -1.

        The inner timer subtracts the loader's own code, the outer one adds all: the difference is the recorder's share.
        """
        inner = _BaseDataLoaderIter.__next__

        def timed(iterator: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return inner(iterator)
            finally:
                self._next_ns += sign * (time.perf_counter_ns() - began)

        setattr(_BaseDataLoaderIter, "__next__", timed)  # noqa: B010  a method, to mypy


def _cpu_s(name: str) -> float:
    """CPU time of this process's thread of that name, s."""
    thread = next(thread for thread in threading.enumerate() if thread.name == name)
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def main() -> None:
    out, block, module, *arguments = sys.argv[1:]
    rank = int(os.environ.get("RANK", 0))
    alternation = Alternation(Path(out) / f"raw-{rank}", int(block))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        alternation.close()
        (Path(out) / f"rank-{rank}.json").write_bytes(msgspec.json.encode(alternation.blocks))


if __name__ == "__main__":
    main()
