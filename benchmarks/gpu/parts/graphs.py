"""CUDA graphs: a job that replays a captured graph in each step, and whether its kernels are known with their launches."""

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.replayed import counts, in_window, show_replay, steps_in
from benchmarks.gpu.sizes import SMALL, size


def measure(kit: Kit) -> None:
    run = kit.record("graphed", kit.job("graphed", *size(kit, SMALL)))
    events = in_window(run)
    steps = steps_in(events)
    kernels = sum(counts(events, "name", "kernel").values())
    calls = counts(events, "name", "runtime")
    launches = {name: count for name, count in calls.items() if "Launch" in name}
    kit.show("kernel_events", kernels / steps, "a step")
    kit.show("launch_events", sum(launches.values()) / steps, "a step", by_name=launches)
    show_replay(kit, run, job="graphed")
