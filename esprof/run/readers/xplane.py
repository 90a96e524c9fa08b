"""Profiles of JAX and TensorFlow (`.xplane.pb`), one file per host."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from esprof.core.errors import InputError
from esprof.run.kineto.reader import Trace
from esprof.run.readers.kineto import run_of_results
from esprof.run.readers.reader import Reader
from esprof.run.reading import run_all
from esprof.run.run import Run, RunWarning
from esprof.run.xplane.space import read_space
from esprof.run.xplane.traces import traces_of

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_COPY = ".trace.json.gz"
"""End of the name of the Chrome trace that JAX writes next to a profile, with part of its content."""


def _newest_profile(folder: Path) -> Path | None:
    """The newest profile below a folder that was given to `jax.profiler.trace`; None if there is none. May raise OSError."""
    profiles = folder / "plugins" / "profile"
    dated = sorted(one for one in profiles.iterdir() if one.is_dir()) if profiles.is_dir() else []
    return dated[-1] if dated else None


def _without_copies(files: Sequence[Path]) -> list[Path]:
    """The files without the Chrome traces of profiles that are among them."""
    profiles = {
        str(file).removesuffix(".gz").removesuffix(_SUFFIXES[0]) for file in files if file.name.endswith(_SUFFIXES)
    }
    return [file for file in files if not file.name.endswith(_COPY) or str(file).removesuffix(_COPY) not in profiles]


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    results = [one for result in run_all(executor, _attempt, paths) for one in result]
    traces = sum(not isinstance(one, InputError) for one in results)
    if traces > 1:
        warning = RunWarning("rank-guessed", f"the ranks of {traces} devices are assumed by host and device number")
        ranks = iter(range(traces))
        results = [
            one if isinstance(one, InputError) else (one[0], _ranked(one[1], next(ranks), warning)) for one in results
        ]
    return run_of_results(results, named, "xplane")


def _ranked(trace: Trace, rank: int, warning: RunWarning) -> Trace:
    return replace(trace, rank=rank, warnings=(*trace.warnings, *([warning] if rank == 0 else [])))


def _attempt(path: Path) -> list[tuple[Path, Trace] | InputError]:
    try:
        return [(path, trace) for trace in traces_of(read_space(path), path)]
    except InputError as error:
        return [error]


READER = Reader(
    name="XPlane",
    recognises=lambda path: path.name.endswith(_SUFFIXES),
    read=_read,
    folder_in=_newest_profile,
    without_copies=_without_copies,
)
