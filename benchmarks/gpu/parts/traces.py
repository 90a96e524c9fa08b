"""Small traces of torch.profiler, kept for tests: one of each kind of job, read and replayed as any user's."""

import shutil

import esprof
from benchmarks.gpu.kit import Kit, launched
from benchmarks.gpu.replayed import show_replay

MOST_BYTES = 300_000
"""Of one file: larger ones are not kept."""
TINY = ("--hidden", "32", "--layers", "1", "--batch", "2", "--context", "16", "--steps", "12")
JOBS = (("train", 1), ("streams", 1), ("graphed", 1), ("train", 2))


def measure(kit: Kit) -> None:
    for job, ranks in JOBS:
        name = job if ranks == 1 else f"{job}-{ranks}-ranks"
        folder = kit.out / "traces" / name
        kit.output(launched(kit.job(job, *TINY, "--trace", str(folder)), ranks)[1:])
        sizes = [file.stat().st_size for file in folder.iterdir()]
        is_kept = max(sizes) <= MOST_BYTES
        kit.show("trace_kb", [size / 1e3 for size in sizes], "kB a rank", job=name, kept=is_kept)
        show_replay(kit, esprof.load(folder), job=name)
        if not is_kept:
            shutil.rmtree(folder)
