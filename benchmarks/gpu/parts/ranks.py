"""Several ranks that share the GPU, whose gradients travel by gloo: what is matched, and how well replay reproduces it."""

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.replayed import counts, in_window, show_replay, steps_in
from benchmarks.gpu.sizes import SHARED, size


def measure(kit: Kit) -> None:
    for ranks in (2, 4):
        run = kit.record(f"ranks-{ranks}", kit.job("train", *size(kit, SHARED)), ranks=ranks)
        for rank in run.ranks:
            events = in_window(run, rank)
            transfers = counts(events, "collective", "collective")
            kit.show(
                "transfers",
                sum(transfers.values()) / steps_in(events),
                "a step",
                ranks=ranks,
                rank=rank,
                kinds=transfers,
            )
        show_replay(kit, run, ranks=ranks)
