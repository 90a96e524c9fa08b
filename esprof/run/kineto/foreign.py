"""Files of other kinds that are often named instead of a trace."""

import re
from pathlib import Path
from typing import NamedTuple

from esprof.core.errors import InputError

_MEMORY = (
    "A snapshot of torch.cuda.memory is for https://pytorch.org/memory_viz. For memory, record the job with "
    "`esprof record`; for time, export a trace with torch.profiler (export_chrome_trace)."
)
_UNPACK = "Unpack it and name the traces in it."
_NSYS = "Export it with nsys export --type sqlite, and name the .sqlite file."
_ROCPROF = "Record with rocprofv3 --output-format rocpd, and name the .db file."
_TORCH = "Export the same steps with torch.profiler (export_chrome_trace)."
_TIMELINE = f"It has no timeline of the job. {_TORCH}"
_ANY = "esprof reads traces of torch.profiler (export_chrome_trace), and what docs/how-to/inputs.md lists."


class _Kind(NamedTuple):
    """A kind of file: how its content begins or its name ends, what it is, and what to do."""

    begins: bytes | None
    """Regular expression of its first bytes; None for any."""
    ends: str | None
    """Regular expression of its name; None for any. Names do not matter where the content is JSON."""
    is_: str
    remedy: str


_KINDS = (
    _Kind(
        rb"\x80",
        None,
        "a pickle, which esprof never loads; the only ones that it reads are dumps of the Flight Recorder",
        _MEMORY,
    ),
    _Kind(
        rb"\s*\[\s*\[|\s*<html>.{0,4096}Memory Timeline",
        None,
        "a memory timeline (export_memory_timeline), which holds sizes by time and no operations",
        "Export the same profile with export_chrome_trace, or run the job under `esprof record`.",
    ),
    _Kind(rb"PK\x03\x04", None, "a zip archive", _UNPACK),
    _Kind(rb".{257}ustar", None, "a tar archive", _UNPACK),
    _Kind(None, r"\.(nsys-rep|qdrep|qdstrm)", "a report of Nsight Systems", _NSYS),
    _Kind(
        None, r"\.(ncu-rep|nsight-cuprof-report)", "a report of Nsight Compute, which measures kernels alone", _TIMELINE
    ),
    _Kind(
        rb"SQLite format 3\x00",
        None,
        "a SQLite database, but no export of Nsight Systems or rocprof with kernels",
        "Profile with CUDA or HIP tracing, which records kernels; or export a trace with torch.profiler "
        "(export_chrome_trace).",
    ),
    _Kind(rb"PAR1", None, "a Parquet file, but no table of operations that esprof knows", _ANY),
    _Kind(rb"\x7fELF", None, "a program", _ANY),
    _Kind(rb"PERFILE2", None, "a recording of Linux perf", _TIMELINE),
    _Kind(rb"memray", None, "a recording of memray, which holds allocations", _MEMORY),
    _Kind(rb"\x89HDF", None, "an HDF5 file", _ANY),
    _Kind(rb"#Paraver", None, "a Paraver trace", _TORCH),
    _Kind(rb"\s*<(\?xml|svg)", None, "a picture or another XML file", _ANY),
    _Kind(rb"\s*<(!doctype html|html)", None, "a web page", "Name the trace that the page was made from."),
    _Kind(
        rb'"?(Time ?\(%\)|Start ?\((ns|us|ms|s)\)|ROWID|Duration ?\()[^\n]*,',
        None,
        "a table of nsys stats, which holds sums or parts of a timeline",
        "Export the report with nsys export --type sqlite, and name the .sqlite file.",
    ),
    _Kind(
        rb'"?(Index"?,"?KernelName|Kind"?,"?Agent_Id|Name"?,"?Calls"?,|Domain"?,"?Function|KERNEL_NAME)',
        None,
        "a table of rocprof (CSV)",
        _ROCPROF,
    ),
    _Kind(rb'"?ID"?,"?Process ID', None, "a table of Nsight Compute (CSV)", _TIMELINE),
    _Kind(None, r"\.(csv|tsv)(\.gz)?", "a table of text", "Write it as a Parquet table: docs/how-to/tables.md."),
    _Kind(None, r"\.(pkl|pickle)", "a pickle, which esprof never loads", _MEMORY),
    _Kind(
        None,
        r"\.xplane\.pb(\.gz)?",
        "a profile of JAX or TensorFlow (XPlane) among other files",
        "Name the .xplane.pb files alone.",
    ),
    _Kind(None, r"\.(pftrace|perfetto-trace)(\.gz)?", "a Perfetto trace in binary form", _TORCH),
    _Kind(None, r".*\.tfevents\..*", "an event file of TensorBoard, which holds curves", _TORCH),
    _Kind(None, r"\.pb(\.gz)?", "a file of Protocol Buffers: a profile of pprof or a Perfetto trace, perhaps", _TORCH),
    _Kind(None, r"\.(dat|att)", "a binary result of rocprof, perhaps", _ROCPROF),
    _Kind(None, r"\.(hatchet|hpcrun|hpctoolkit)", "a profile of Hatchet or HPCToolkit", _TIMELINE),
    _Kind(None, r"\.otf2", "an OTF2 trace", _TORCH),
    _Kind(rb"[^\x00]{0,511}\x00", None, "a binary file of a kind that esprof does not know", _ANY),
)
_JSON = re.compile(rb"\s*[\[{]")
_BEGINS = tuple(
    (re.compile(kind.begins, re.DOTALL | re.IGNORECASE) if kind.begins is not None else None) for kind in _KINDS
)
_ENDS = tuple((re.compile(f".*{kind.ends}", re.DOTALL) if kind.ends is not None else None) for kind in _KINDS)


def refuse_foreign(path: Path, text: bytearray) -> None:
    """Raise InputError with the kind of file and a remedy if `text`, the content of `path`, is known to be no trace."""
    is_json = _JSON.match(text) is not None
    for kind, begins, ends in zip(_KINDS, _BEGINS, _ENDS, strict=True):
        if (begins is None or begins.match(text)) and (ends is None or (not is_json and ends.fullmatch(path.name))):
            raise InputError(f"is {kind.is_}", path=path, remedy=kind.remedy)
