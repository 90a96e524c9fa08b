"""Files of other kinds that are often named instead of a trace."""

import re
from pathlib import Path

from esprof.core.errors import InputError

_MEMORY_TIMELINE = re.compile(rb"\s*\[\s*\[|\s*<html>.{0,4096}Memory Timeline", re.DOTALL | re.IGNORECASE)
"""How the files of `export_memory_timeline` begin: lists in a list, or a page of HTML."""

_PACKED = (
    (re.compile(rb"PK\x03\x04"), "a zip archive"),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive"),
)
"""Pattern of the first bytes, and what the file is."""

_OTHER_TOOLS = (
    (re.compile(rb"SQLite format 3\x00"), "a SQLite database, but no export of Nsight Systems or rocprof with kernels"),
    (re.compile(rb"PAR1"), "a Parquet file, but no table of operations that esprof knows"),
    (re.compile(rb"\x7fELF"), "a program"),
)
_OTHER_SUFFIXES = {
    ".nsys-rep": "a report of Nsight Systems",
    ".ncu-rep": "a report of Nsight Compute",
    ".xplane.pb": "a profile of JAX or TensorFlow (XPlane)",
    ".pftrace": "a Perfetto trace in binary form",
    ".perfetto-trace": "a Perfetto trace in binary form",
}


def refuse_foreign(path: Path, text: bytearray) -> None:
    """Raise InputError with the kind of file and a remedy if `text`, the content of `path`, is known to be no trace."""
    if text[:1] == b"\x80":
        raise InputError(
            "is a pickle, which esprof never loads; the only ones that it reads are dumps of the Flight Recorder",
            path=path,
            remedy="A snapshot of torch.cuda.memory is for https://pytorch.org/memory_viz. For memory, record the job with "
            "`esprof record`; for time, export a trace with torch.profiler (export_chrome_trace).",
        )
    if _MEMORY_TIMELINE.match(text):
        raise InputError(
            "is a memory timeline (export_memory_timeline), which holds sizes by time and no operations",
            path=path,
            remedy="Export the same profile with export_chrome_trace, or run the job under `esprof record`.",
        )
    for begins, kind in _PACKED:
        if begins.match(text):
            raise InputError(f"is {kind}", path=path, remedy="Unpack it and name the traces in it.")
    found = next((kind for begins, kind in _OTHER_TOOLS if begins.match(text)), None)
    found = found or next((kind for suffix, kind in _OTHER_SUFFIXES.items() if path.name.endswith(suffix)), None)
    if found is None and b"\x00" in text[:512]:
        found = "a binary file of a kind that esprof does not know"
    if found is not None:
        raise InputError(
            f"is {found}",
            path=path,
            remedy="Export it with nsys export --type sqlite."
            if path.name.endswith(".nsys-rep")
            else "esprof reads traces of torch.profiler (export_chrome_trace), and what docs/how-to/inputs.md lists.",
        )
