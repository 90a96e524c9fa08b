"""Classify the rows of CPU threads: operation or call, node class, and how much of the time is the row's own work."""

import numpy as np

from esprof.replay import rules
from esprof.replay.building.collectives.gloo import GlooWork
from esprof.replay.building.gpu.kernels import GpuWork
from esprof.replay.building.gpu.runtime_waits import Causes, RuntimeCalls, own_ns
from esprof.replay.building.node_names import NameForm, packed
from esprof.replay.building.threads.layout import ALL, ThreadRows
from esprof.replay.building.threads.loader import LoaderWork
from esprof.replay.dfg import Cls


def operations(gpu: GpuWork) -> ThreadRows:
    """All rows as operations; their class is compute if the job trains on the CPU."""
    events = gpu.events
    count = len(events.start)
    return ThreadRows(
        start=events.start,
        end=events.end,
        text=events.name,
        name=packed(NameForm.PLAIN, events.name),
        cls=np.full(count, Cls.CPU if len(gpu) else Cls.COMPUTE, np.int8),
        is_call=np.zeros(count, bool),
        own=np.full(count, ALL),
        hides_wait=np.zeros(count, bool),
    )


def mark_collective_calls(rows: ThreadRows, gloo: GlooWork) -> None:
    """Mark the calls that launch a collective; one that waited for its collective has `MAX_BLOCKING_OWN` of own work."""
    rows.is_call[gloo.call] = True
    rows.own[gloo.call[gloo.blocks]] = rules.MAX_BLOCKING_OWN


def mark_loads(rows: ThreadRows, loader: LoaderWork) -> None:
    """Mark the loader's `next` calls: own work is the whole call, or only receiving the batch if a worker made it."""
    rows.is_call[loader.row] = True
    rows.cls[loader.row] = Cls.DATA
    rows.own[loader.row[loader.by_worker]] = loader.own_ns[loader.by_worker]


def mark_runtime_calls(
    rows: ThreadRows, gpu: GpuWork, calls: RuntimeCalls, causes: Causes, hidden: Causes
) -> np.ndarray:
    """Mark the runtime calls, and return the rows of those that launched work and did not wait.

    Own work of a call that waited is given by `runtime_waits.own_ns`. If the cause is unknown, the rest of its recorded
    time remains as a residual.
    """
    rows.is_call[calls.row] = True
    rows.hides_wait[hidden.row] = True
    waits = calls.waits(causes)
    rows.own[calls.row[waits]] = own_ns(gpu, calls, causes)[waits]
    launches = ~waits & ~calls.traits["allocates"] & (calls.launched >= 0)
    rows.cls[calls.row] = np.select(
        [calls.traits["allocates"], waits, launches], [Cls.ALLOCATOR, Cls.CPU, Cls.LAUNCH], Cls.CPU
    )
    launch: np.ndarray = calls.row[launches]
    launched = gpu.row[calls.launched[launches]]
    rows.name[launch] = packed(NameForm.LAUNCH, rows.text[launch], rows.text[launched])
    return launch
