"""Train with alternating windows of several kinds, and log the time of each step.

    python -m torch.distributed.run … -m benchmarks.interleaved OUT BLOCK MODULE [ARGUMENTS…]

Runs MODULE as a program, in a process with the recorder. Blocks of BLOCK steps alternate between no recording and one of
`KINDS`, in order. Neighbouring blocks run under the same load of the machine.

Each rank writes OUT/rank-N.json, an `InterleavedSteps`.
"""

import os
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer, optimizer
from torch.profiler import ProfilerActivity, profile

from esprof.recorder.injected import session
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.windows.module_events import ModuleEvents
from esprof.recorder.injected.windows.window import ProfilerWindow
from esprof.recorder.launcher.launch import HOOK
from esprof.run.raw.settings import Settings

NONE = "none"
KINDS = ("profiler", "window", "without_modules", "recorder", "correlated")
"""torch.profiler alone, with the options of esprof; a window of esprof, with the rest of the recorder; the same without the
calls of modules; the recorder without a window; and torch.profiler alone with external correlation, its default."""


@dataclass
class InterleavedSteps:
    """Duration of each step, and the kind of recording in it; each list has one entry per step."""

    kind: list[str] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    """Wall time of each step. The first of a block holds the end of the block before."""
    cpu_ns: list[int] = field(default_factory=list)
    """CPU time of the training thread in each step, in which other work on the machine does not count."""


class Interleaving:
    """Switches to the next kind of recording at the end of each block."""

    def __init__(self, raw: Path, block: int) -> None:
        self.steps = InterleavedSteps()
        self._raw, self._block = raw, block
        raw.mkdir(mode=0o700, parents=True)
        Settings(windows=False, hang_s=0).write(str(raw))
        recorder = session.begin(str(raw), str(HOOK), lambda: None).recorder
        assert recorder is not None
        self._state = recorder.state
        self._modules = ModuleEvents(Log())
        (number, self._hook), *_ = optimizer._global_optimizer_post_hooks.items()
        optimizer._global_optimizer_post_hooks[number] = self._after_step
        self._kind, self._window = NONE, None
        self._open = ExitStack()
        self._began_ns, self._began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()

    def _after_step(self, stepped: Optimizer, args: Any, kwargs: Any) -> None:
        now_ns, now_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self.steps.kind.append(self._kind)
        self.steps.step_ns.append(now_ns - self._began_ns)
        self.steps.cpu_ns.append(now_cpu_ns - self._began_cpu_ns)
        self._began_ns, self._began_cpu_ns = now_ns, now_cpu_ns
        if self._kind in ("window", "without_modules", "recorder") or not self._state.step:
            self._hook(stepped, args, kwargs)
        else:
            self._state.start_ns = time.time_ns()  # Otherwise hang detection would see the block as one slow step.
            self._state.thread = 0  # Do not sample stacks.
        steps = len(self.steps.kind)
        if steps % self._block == 0:
            self._open.close()
            block = steps // self._block
            self._kind = KINDS[block // 2 % len(KINDS)] if block % 2 else NONE
            self._open.enter_context(self._recording(steps))
        if self._window is not None:
            self._window.begin_step(steps)

    @contextmanager
    def _recording(self, steps: int) -> Iterator[None]:
        if self._kind in (NONE, "recorder"):
            yield
        elif self._kind in ("window", "without_modules"):
            modules = self._modules if self._kind == "window" else None
            self._window = ProfilerWindow(str(self._raw / f"{steps}.json"), shapes=False, modules=modules)
            self._window.prepare()
            self._window.start()
            yield
            self._window.close(keep=False)
            self._window = None
        else:
            with _bare(self._kind):
                yield


@contextmanager
def _bare(kind: str) -> Iterator[None]:
    """torch.profiler alone."""
    config = torch._C._profiler._ExperimentalConfig(
        enable_cuda_sync_events=True, disable_external_correlation=kind != "correlated", trace_only=True
    )
    bare = profile(activities=[ProfilerActivity.CPU], experimental_config=config)
    bare.prepare_trace()
    bare.start_trace()
    yield
    bare.stop_trace()


def main() -> None:
    out, block, module, *arguments = sys.argv[1:]
    rank = int(os.environ.get("RANK", 0))
    steps = Interleaving(Path(out) / f"raw-{rank}", int(block)).steps
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")
    (Path(out) / f"rank-{rank}.json").write_bytes(msgspec.json.encode(steps))


if __name__ == "__main__":
    main()
