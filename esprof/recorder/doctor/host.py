"""Trials of Python, the file system and the kernel's files. None of them needs torch."""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from esprof.core import readable
from esprof.core.errors import OutputError
from esprof.core.output import write_bytes
from esprof.core.types import Bytes
from esprof.recorder.doctor.health import HealthCheck, fail, ok, warn
from esprof.recorder.launcher.launch import HOOK
from esprof.recorder.launcher.raw_folder import make_raw
from esprof.recorder.shared.environment import with_hook
from esprof.run import files
from esprof.run.raw import names
from esprof.run.raw.settings import Settings

MIN_PYTHON = (3, 11)

_LIBRARIES = {
    "click": "click",
    "jinja2": "jinja2",
    "msgspec": "msgspec",
    "networkx": "networkx",
    "numba": "numba",
    "numpy": "numpy",
    "pandas": "pandas",
    "plotly": "plotly",
    "pyarrow": "pyarrow",
    "rich": "rich",
    "scipy": "scipy",
    "yaml": "pyyaml",
}
"""Module -> name of the package that has it."""

_MIN_FREE: Bytes = 2 << 30
"""Default of `record --max-trace`, bytes: a rank may write as much."""

_MIN_SHARED_MEMORY: Bytes = 256 << 20
"""Less shared memory, such as the 64 MiB that Docker gives by default, is soon filled by loader workers, bytes."""

_MAX_CLOCK_NS = 1_000
"""Duration of reading a clock, ns, above which the recorder's readings cost more than the events that they time."""

_READINGS = 2_000
_MAX_START_S = 10


def check_python() -> HealthCheck:
    found = f"Python {platform.python_version()} on {platform.system()}, {sys.executable}"
    if sys.version_info < MIN_PYTHON or platform.system() != "Linux":
        return fail("python", found, "esprof runs on Linux, with Python 3.11 or newer.", "Use such an environment.")
    return ok("python", found, "A job with another Python is recorded as well, if it has torch.")


def check_libraries() -> HealthCheck:
    missing = [package for module, package in _LIBRARIES.items() if find_spec(module) is None]
    if missing:
        remedy = f"pip install {' '.join(missing)}"
        return warn("libraries", f"missing: {', '.join(missing)}", "Verbs that need them end with an error.", remedy)
    return ok("libraries", f"all {len(_LIBRARIES)} are installed", "They read, replay and draw runs.")


def check_folder(folder: Path) -> Iterator[HealthCheck]:
    """Writes, renames, locks and free space in `folder`, where Runs are written unless -o names another."""
    means = "A Run and all results are written to a temporary name, synced and renamed."
    remedy = "Change to another folder, or name one with -o."
    try:
        with tempfile.TemporaryDirectory(prefix=".esprof-doctor-", dir=folder) as inner:
            began = time.perf_counter()
            for content in (b"old", b"new"):
                write_bytes(Path(inner) / "file", content)
            took_ms = 1_000 * (time.perf_counter() - began) / 2
            yield ok("folder", f"{folder} is writable; a file is written and renamed in {took_ms:.1f} ms", means)
            yield _check_lock(Path(inner) / "file")
    except (OSError, OutputError) as error:
        yield fail("folder", f"{folder} is not writable: {error}", means, remedy)
        return
    free = shutil.disk_usage(folder).free
    means = "The windows of one rank take up to 2 GiB (`record --max-trace`)."
    if free < _MIN_FREE:
        yield warn("disk", f"{readable.size(free)} free", means, "Free some space, or lower --max-trace.")
    else:
        yield ok("disk", f"{readable.size(free)} free", means)


def _check_lock(path: Path) -> HealthCheck:
    means = "A lock shows whether a rank is alive, so that a Run is completed only after its job."
    try:
        with path.open("r+b") as file:  # NFS refuses a lock on what was opened to read only.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "Record onto another file system, or mount this one with locks (NFS: without nolock)."
        return warn("locks", f"flock is refused: {error.strerror}", means, remedy)
    return ok("locks", "flock works", means)


def check_compiled() -> HealthCheck:
    """The folder in which compiled functions are cached."""
    from esprof.core.compiled import cache_folder  # Imports numba.

    folder = cache_folder()
    means = "Compiled functions are stored there; without it every command compiles them again, for some seconds."
    if folder is None:
        remedy = "Set NUMBA_CACHE_DIR to a folder that only you can write to."
        return warn("compiled code", "no private folder for it", means, remedy)
    return ok("compiled code", f"cached in {folder}", means)


def check_kernel_files(proc: Path = Path("/proc")) -> Iterator[HealthCheck]:
    """What the recorder reads of /proc. It uses neither ptrace nor perf, and needs no privilege."""
    for name, file, means in (
        (
            "run queue",
            "self/schedstat",
            "It tells how long a thread waited for a CPU (ESP404, the what-if runqueue=0).",
        ),
        ("reads", "self/io", "It tells how much the making of a batch read from storage (ESP102, storage=)."),
        ("memory", "self/statm", "It tells the memory of a rank (ESP502)."),
        ("limits", "self/cgroup", "It leads to CPU quotas and memory limits of containers (ESP404, ESP502)."),
    ):
        try:
            (proc / file).read_bytes()
        except OSError as error:
            remedy = "Ask for a kernel with schedstats, or a container whose /proc is complete."
            yield warn(name, f"{proc / file} cannot be read: {error.strerror}", means, remedy)
        else:
            yield ok(name, f"{proc / file} is readable", means)


def check_clock() -> HealthCheck:
    """The cost of reading the clock."""
    began = time.perf_counter_ns()
    for _ in range(_READINGS):
        time.time_ns()
    each = (time.perf_counter_ns() - began) / _READINGS
    means = "Each record of the recorder reads the clock."
    if each > _MAX_CLOCK_NS:
        remedy = "Let the kernel use the clock source tsc: /sys/devices/system/clocksource/clocksource0."
        return warn("clock", f"a reading takes {each:,.0f} ns", means, remedy)
    return ok("clock", f"a reading takes {each:,.0f} ns", means)


def check_cpus() -> HealthCheck:
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    found = f"{cpus} usable, load {load:.1f}"
    means = "Other work on the CPUs lengthens steps by varying amounts, so that small differences cannot be seen."
    if load > cpus:
        return warn("CPUs", found, means, "Measure while the machine is idle.")
    return ok("CPUs", found, means)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> HealthCheck:
    means = "DataLoader workers pass batches through it."
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return warn("shared memory", f"{folder}: {error.strerror}", means, "Use num_workers=0, or mount it.")
    if free < _MIN_SHARED_MEMORY:
        remedy = "Start the container with --shm-size=2g, or --ipc=host."
        return warn("shared memory", f"{readable.size(free)} free", means, remedy)
    return ok("shared memory", f"{readable.size(free)} free", means)


def check_terminal(stream: TextIO, environ: Mapping[str, str]) -> HealthCheck:
    encoding = (stream.encoding or "unknown").lower()
    colour = "no colour" if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" else "colour"
    found = f"encoding {encoding}, {shutil.get_terminal_size().columns} columns, {colour}"
    means = "Results use characters such as –, ± and µ."
    if not encoding.startswith("utf"):
        return warn("terminal", found, means, "Set PYTHONUTF8=1, or a UTF-8 locale such as LANG=C.UTF-8.")
    return ok("terminal", found, means)


def check_hook(python: str = sys.executable) -> HealthCheck:
    """Whether a new Python process finds the recorder by its environment."""
    means = "The recorder enters the processes of a job through PYTHONPATH (sitecustomize)."
    remedy = "Do not start Python with -I, -E or -S, and do not reset PYTHONPATH in a wrapper script."
    with tempfile.TemporaryDirectory(prefix="esprof-doctor-") as folder:
        raw = Path(folder) / files.RAW
        make_raw(raw, (), Settings())
        environ = os.environ | with_hook(os.environ, str(raw), str(HOOK))
        try:
            subprocess.run([python, "-c", ""], env=environ, timeout=_MAX_START_S, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return fail("recorder", f"{python} does not start: {error}", means, "Repair this Python.")
        is_found = any(raw.glob(names.PYTHONS))
    if not is_found:
        return fail("recorder", "a Python process does not load it", means, remedy)
    return ok("recorder", "a Python process loads it", means)
