"""Contents of a snapshot: stacks of threads, collectives, and the loader workers that the process waits for."""

import json
import os
import threading
import traceback
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ....core.frames import Place, stacks
from ....run.raw.new_files import write_new
from ...shared.torch_features import dump_collectives
from . import loader_waits
from .worker_stack import dump_of, state_of

_MAX_THREADS, _MAX_FRAMES, _MAX_WORKERS = 64, 100, 8


def threads(training: int) -> list[dict[str, object]]:
    """The stacks of all Python threads but this one; that of the thread `training` comes first."""
    names_of = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    others = [(ident, stack) for ident, stack in stacks(_MAX_FRAMES).items() if ident != own]
    others.sort(key=lambda other: other[0] != training)
    return [
        {"name": names_of.get(ident, ""), "training": ident == training, "frames": _lines(stack)}
        for ident, stack in others[:_MAX_THREADS]
    ]


def thread_of_error(error: BaseException) -> dict[str, object]:
    """The stack of this thread where it raised `error`."""
    frames: list[tuple[str, int, str]] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.insert(0, (code.co_filename, trace.tb_lineno or 0, code.co_name))
        trace = trace.tb_next
    return {"name": threading.current_thread().name, "training": True, "frames": frames[:_MAX_FRAMES]}


def error_fields(error: BaseException) -> dict[str, object]:
    """Fields of a snapshot about the exception that ends the process."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return {"error": text[:1000], "error_type": type(error).__name__}


def groups() -> list[dict[str, object]]:
    """The process groups that this rank is in. Their names are unique among the members, but not beyond them."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    world = dist.distributed_c10d._world
    members = [(group, sorted(ranks)) for group, ranks in list(world.pg_group_ranks.items())]
    return [
        {"name": world.pg_names[group], "description": group.group_desc, "ranks": ranks} for group, ranks in members
    ]


def calls(newest: int | None) -> list[dict[str, Any]]:
    """What each of PyTorch's Flight Recorders holds: its `newest` calls, or all where that is None."""
    recorders = [json.loads(dump) for dump in dump_collectives(include_calls=True)]
    for recorder in recorders:
        entries: Sequence[object] = recorder.get("entries", [])
        recorder["entries"] = entries if newest is None else entries[-newest:]
    return [recorder for recorder in recorders if recorder["entries"]]


def collective_progress() -> bytes:
    """How far the collectives of each process group have come, as text to compare."""
    return b"".join(dump_collectives(include_calls=False))


def awaited_workers(training: int) -> list[dict[str, object]]:
    """The loader workers of which one has the batch that the thread `training` waits for, and where they are."""
    return [
        {"worker": number, "pid": pid, "state": state_of(pid), "dump": dump_of(pid)}
        for number, pid in loader_waits.workers(training)[:_MAX_WORKERS]
    ]


def write_snapshot(path: str, snapshot: dict[str, object]) -> None:
    """Write a snapshot, completely or not at all."""
    write_new(f"{path}.part", json.dumps(snapshot, separators=(",", ":")).encode())
    os.rename(f"{path}.part", path)


def _lines(stack: list[Place]) -> list[tuple[str, int, str]]:
    """(file, line, function) of each place."""
    return [(code.co_filename, line or 0, code.co_name) for code, line, _ in stack]
