"""Windows of a job of one process: what a recording of it holds, and how closely replay reproduces it."""

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.replayed import counts, in_window, show_replay, steps_in, streams
from benchmarks.gpu.sizes import LARGE, SMALL, size
from esprof.run.schema import Table


def measure(kit: Kit) -> None:
    for kind in (LARGE, SMALL):
        run = kit.record(f"train {kind}".replace(" ", "-"), kit.job("train", *size(kit, kind)))
        show_events(kit, in_window(run), job=kind)
        show_replay(kit, run, job=kind)


def show_events(kit: Kit, events: Table, job: str) -> None:
    steps = steps_in(events)
    for kind, count in counts(events, "kind", "op", "runtime", "kernel", "memcpy", "memset", "sync").items():
        kit.show(f"{kind}_events", count / steps, "a step", job=job)
    kit.show("streams", streams(events), "streams", job=job)
