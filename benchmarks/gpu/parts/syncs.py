"""Sync records: a job that waits in every way that CUDA knows, and which of its waits have a reason in the recording."""

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.replayed import counts, in_window, show_replay, steps_in, streams
from benchmarks.gpu.sizes import SMALL, size


def measure(kit: Kit) -> None:
    run = kit.record("streams", kit.job("streams", *size(kit, SMALL)))
    events = in_window(run)
    steps = steps_in(events)
    kinds = counts(events, "name", "sync")
    kit.show("sync_records", sum(kinds.values()) / steps, "a step", by_name=kinds)
    kit.show("streams", streams(events), "streams")
    show_replay(kit, run, job="streams")
