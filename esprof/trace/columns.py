"""From decoded trace rows to the columns of the event table: kinds, roles, steps, and what collectives moved."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from esprof.trace.groups import group_name, parse_ranks
from esprof.trace.run import Group, Warning
from esprof.trace.schema import EVENTS, Table, table

_Number = int | float | str | None
_NOTHING = msgspec.Raw()
_INT64 = pa.int64()


class Args(msgspec.Struct, frozen=True):
    """The arguments of a trace row that esprof uses; everything else is skipped while decoding."""

    external: _Number = msgspec.field(name="External id", default=None)
    external_old: _Number = msgspec.field(name="external id", default=None)
    correlation: _Number = None
    device: _Number = None
    stream: _Number = None
    sequence: _Number = msgspec.field(name="Sequence number", default=None)
    forward_thread: _Number = msgspec.field(name="Fwd thread id", default=None)
    bytes: _Number = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: _Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: _Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_ranks: list[int] | str | None = msgspec.field(name="Process Group Ranks", default=None)
    sequence_in_group: _Number = msgspec.field(name="Seq", default=None)
    source_rank: _Number = msgspec.field(name="Src Rank", default=None)
    target_rank: _Number = msgspec.field(name="Dst Rank", default=None)
    wait_stream: _Number = msgspec.field(name="wait_on_stream", default=None)
    wait_correlation: _Number = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


_NO_ARGS = Args()


class Row(msgspec.Struct):
    """One row of a Chrome trace. Times are microseconds; metadata and some instants have none."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


_KIND_OF_CATEGORY = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "runtime": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_sync": "sync",
    "python_function": "python",
}
_STEP = re.compile(r"ProfilerStep#\s*(\d{1,9})$")
_BACKWARD = re.compile(r"^autograd::engine::|Backward\d*$|AccumulateGrad$")
_NUMBER_AT_END = re.compile(r"(?:^|\s)(-?\d{1,19})$", re.ASCII)
_FIRST_ITEM = re.compile(rb'\s*\[\s*"([^"]*)"')
_NCCL_KERNEL = re.compile(r"nccl(Dev)?Kernel|^nccl|^rccl", re.IGNORECASE)
_REDUCTION = re.compile(r"ncclDevKernel_(?:AllReduce|ReduceScatter|Reduce)_[A-Za-z]+_([a-z]+\d\w*?)_")
"""Only reductions need to know the type; older kernels (`ncclKernel_…_float`) carry one whatever they reduce."""

_COLLECTIVE_WORDS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
)
_ITEM_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "c10::half": 2,
    "c10::bfloat16": 2, "int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8, "short": 2, "char": 1,
    "byte": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i8": 1,
    "u8": 1,
}  # fmt: skip
"""Element sizes by the names that `record_param_comms` (`Float`), `Input type` (`c10::Half`) and NCCL's kernels (`f16`)
use, lower-cased."""


def event_table(
    rows: Sequence[Row], times: tuple[np.ndarray, np.ndarray], groups: dict[str, Group]
) -> tuple[Table, tuple[Warning, ...]]:
    """Build the event table of one rank, sorted by start.

    `times` is (start ns, duration ns) per row; `groups` maps this process's group names to groups.
    """
    kinds = [_kind(row) for row in rows]
    keep = [i for i, kind in enumerate(kinds) if kind is not None]
    starts, durations = times
    # Ties: the longer first, so that a parent always stands before its children.
    order = np.array(keep, np.int64)[np.lexsort((-durations[keep], starts[keep]))] if keep else np.array([], np.int64)
    columns = _plain_columns([rows[i] for i in order], [kinds[i] for i in order])
    columns["start_ns"], columns["dur_ns"] = starts[order], durations[order]
    columns["thread_role"] = _thread_roles(columns)
    warnings = _fill_steps(columns)
    _fill_collectives(columns, [rows[i].args or _NO_ARGS for i in order], groups)
    return table(columns, EVENTS), warnings


def _kind(row: Row) -> str | None:
    kind = _KIND_OF_CATEGORY.get((row.cat or "").lower())
    if kind in ("op", "annotation"):
        if row.name.startswith("ProfilerStep"):
            return "step"
        if row.name.startswith("enumerate(DataLoader)#"):
            return "loader"
        if row.name.startswith("gloo:"):
            return "collective"
    if kind == "kernel" and _NCCL_KERNEL.search(row.name):
        return "collective"
    return kind


def _plain_columns(rows: list[Row], kinds: list[str | None]) -> dict[str, Any]:
    args = [row.args or _NO_ARGS for row in rows]
    external = [a.external if a.external is not None else a.external_old for a in args]
    on_gpu = [_is_on_gpu(row, kind) for row, kind in zip(rows, kinds, strict=True)]
    return {
        "name": [row.name for row in rows],
        "kind": kinds,
        "pid": _ints(row.pid for row in rows),
        "tid": _ints(None if gpu else row.tid for row, gpu in zip(rows, on_gpu, strict=True)),
        "device": _ints((a.device if gpu else None for a, gpu in zip(args, on_gpu, strict=True)), pa.int32()),
        "stream": _ints(a.stream if gpu else None for a, gpu in zip(args, on_gpu, strict=True)),
        "correlation": _ints(a.correlation for a in args),
        "external_id": _ints(external),
        "autograd_seq": _ints(a.sequence for a in args),
        "fwd_tid": _ints(a.forward_thread for a in args),
        "sync_stream": _ints(a.wait_stream for a in args),
        "sync_correlation": _ints(a.wait_correlation for a in args),
        "in_bytes": _ints(a.bytes for a in args),
        "shapes": [bytes(a.dims).decode(errors="replace") or None for a in args],
    }


def _is_on_gpu(row: Row, kind: str | None) -> bool:
    """Whether a row ran on a stream. Its arguments do not tell: ROCm's launch calls name a stream too, by address."""
    return kind in ("kernel", "memcpy", "memset", "sync") or (kind == "collective" and not row.name.startswith("gloo:"))


def _ints(values: Iterable[_Number], type_: pa.DataType = _INT64) -> pa.Array:
    """An integer column; what is no number of that width is null (text `stream 7` counts as 7)."""
    values = list(values)
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_int(value, type_.bit_width) for value in values], type_)


def _int(value: _Number, bits: int = 64) -> int | None:
    if isinstance(value, str):
        digits = _NUMBER_AT_END.search(value.strip())
        value = int(digits.group(1)) if digits else None
    if value is None or value != value or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        return None
    return int(value)


def _numbers(column: pa.Array, missing: int = -1) -> np.ndarray:
    numbers: np.ndarray = column.fill_null(missing).to_numpy(zero_copy_only=False)
    return numbers


def _thread_roles(columns: dict[str, Any]) -> list[str | None]:
    """`main`, `autograd`, `comm` (gloo's threads) or `other`; null for what runs on a GPU."""
    tids = _numbers(columns["tid"]).tolist()
    names, kinds = columns["name"], columns["kind"]
    stepping = Counter(t for t, kind in zip(tids, kinds, strict=True) if kind in ("step", "loader") and t >= 0)
    working = Counter(t for t, kind in zip(tids, kinds, strict=True) if kind == "op" and t >= 0)
    backward = {t for t, name in zip(tids, names, strict=True) if _BACKWARD.search(name)}
    forward = Counter({t: n for t, n in working.items() if t not in backward})
    main = next((counter.most_common(1)[0][0] for counter in (stepping, forward, working) if counter), -1)
    comm = {t for t, kind in zip(tids, kinds, strict=True) if kind == "collective" and t >= 0} - set(working)
    role: dict[int, str | None] = dict.fromkeys(tids, "other")
    role |= dict.fromkeys(comm, "comm") | dict.fromkeys(backward, "autograd")
    role |= {main: "main", -1: None}
    return [role[t] for t in tids]


def _fill_steps(columns: dict[str, Any]) -> tuple[Warning, ...]:
    """Number each row by the step it was issued in: a GPU row belongs to the step of its launch."""
    starts = columns["start_ns"]
    rows = [i for i, kind in enumerate(columns["kind"]) if kind == "step"]
    numbers = np.array([int(m.group(1)) if (m := _STEP.match(columns["name"][i])) else -1 for i in rows], np.int64)
    if not rows:
        columns["step"] = pa.array(np.zeros(len(starts), np.int64))
        return (Warning("no-steps", "the trace has no ProfilerStep; the whole window counts as one step"),)
    first, last_end = starts[rows], starts[rows[-1]] + columns["dur_ns"][rows[-1]]
    issued = starts.copy()
    correlation, on_gpu = _numbers(columns["correlation"]), _numbers(columns["stream"]) >= 0
    launch = {
        c: s for c, s, k in zip(correlation.tolist(), starts.tolist(), columns["kind"], strict=True) if k == "runtime"
    }
    for i in np.flatnonzero(on_gpu).tolist():
        # A kernel whose launch is not in the window was launched before it: it belongs to no step here.
        issued[i] = launch.get(int(correlation[i]), 0)
    slot = np.searchsorted(first, issued, side="right") - 1
    step = np.where((slot >= 0) & (issued < last_end), numbers[np.maximum(slot, 0)], -1)
    columns["step"] = pa.array(step, mask=step < 0)
    return ()


def collective_word(name: str) -> str | None:
    """The collective that a kernel, annotation or call name stands for, in one spelling (`all_reduce`)."""
    plain = name.lower().replace("_", "").replace("coalesced", "")
    return next((word for key, word in _COLLECTIVE_WORDS if key in plain), None)


def _fill_collectives(columns: dict[str, Any], args: list[Args], groups: dict[str, Group]) -> None:
    """Fill what collective rows moved and between whom, from their own arguments or the CPU call around their launch."""
    count = len(args)
    out: dict[str, list[Any]] = {
        name: [None] * count for name in ("collective", "group", "coll_seq", "dtype", "out_bytes", "is_p2p", "peer")
    }
    in_bytes = columns["in_bytes"].to_pylist()
    for i, source in _described_collectives(columns, args).items():
        word = collective_word(source.collective or "") or collective_word(columns["name"][i])
        described = word if word != "send_recv" else None
        dtype = source.dtype or _first_type(source.types) or _reduced_type(columns["name"][i])
        size = _ITEM_BYTES.get((dtype or "").lower())
        out["collective"][i] = described or collective_word(columns["name"][i])
        out["group"][i] = _group_of(source, groups)
        out["coll_seq"][i] = source.sequence_in_group
        out["dtype"][i] = dtype
        elements = _int(source.in_elements)
        elements = _element_count(source.dims) if elements is None else elements
        in_bytes[i] = elements * size if elements is not None and size else None
        sent = _int(source.out_elements)
        out["out_bytes"][i] = sent * size if sent is not None and size else None
        out["is_p2p"][i] = out["collective"][i] in ("send", "recv")
        peer = source.target_rank if out["collective"][i] == "send" else source.source_rank
        out["peer"][i] = peer if out["is_p2p"][i] else None
    columns |= out
    columns |= {name: _ints(columns[name]) for name in ("coll_seq", "out_bytes")}
    columns |= {"in_bytes": _ints(in_bytes), "peer": _ints(out["peer"], pa.int32())}


def _described_collectives(columns: dict[str, Any], args: list[Args]) -> dict[int, Args]:
    """Row of each collective -> the arguments that describe it best.

    A NCCL kernel may carry none of its own: then the `record_param_comms` call or `nccl:` annotation around its launch,
    found by thread and time, stands in.
    """
    kinds, names = columns["kind"], columns["name"]
    tids, correlation = _numbers(columns["tid"]), _numbers(columns["correlation"])
    starts, durations = columns["start_ns"], columns["dur_ns"]
    calls: dict[int, list[int]] = {}
    launches: dict[int, int] = {}
    for i, kind in enumerate(kinds):
        if kind == "runtime":
            launches[int(correlation[i])] = i
        elif names[i] == "record_param_comms" or (kind == "annotation" and names[i].startswith("nccl:")):
            calls.setdefault(int(tids[i]), []).append(i)
    found = {}
    for i, kind in enumerate(kinds):
        if kind != "collective":
            continue
        found[i] = args[i]
        launch = launches.get(int(correlation[i])) if correlation[i] >= 0 else None
        if args[i].collective is None and launch is not None:
            around = _enclosing(calls.get(int(tids[launch]), []), starts, durations, int(starts[launch]))
            best = max(around, key=lambda j: args[j].collective is not None, default=None)
            if best is not None:
                named = next((names[j] for j in around if names[j].startswith("nccl:")), "")
                found[i] = (
                    args[best] if args[best].collective else msgspec.structs.replace(args[best], collective=named)
                )
    return found


def _enclosing(calls: list[int], starts: np.ndarray, durations: np.ndarray, moment: int) -> list[int]:
    """Those of `calls` (row numbers, ascending by start) that are open at `moment`; looks back over a few siblings."""
    at = int(np.searchsorted(starts[calls], moment, side="right")) if calls else 0
    return [j for j in calls[max(0, at - 4) : at] if starts[j] + durations[j] >= moment]


def _group_of(source: Args, groups: dict[str, Group]) -> str | None:
    """The group that the call names by its ranks or locally; where it names none, the only one that there is."""
    ranks = parse_ranks(source.group_ranks)
    if ranks:
        return group_name(ranks)
    if source.group not in (None, ""):
        known = groups.get(str(source.group))
        return known.name if known else None
    names = {group.name for group in groups.values() if len(group.ranks) > 1}
    return names.pop() if len(names) == 1 else None


def _first_type(raw: msgspec.Raw) -> str | None:
    """The first item of `Input type`, where it is an element type and not `TensorList`, `Scalar` or nothing."""
    match = _FIRST_ITEM.match(bytes(raw))
    name = match.group(1).decode(errors="replace") if match else ""
    return name if name.lower() in _ITEM_BYTES else None


def _reduced_type(kernel: str) -> str | None:
    match = _REDUCTION.match(kernel)
    return match.group(1) if match else None


def _element_count(raw: msgspec.Raw) -> int | None:
    """Elements of the first operand in `Input Dims`: the product of its innermost list, summed over a tensor list."""
    try:
        dims = msgspec.json.decode(raw) if bytes(raw) else None
        operand = dims[0] if isinstance(dims, list) and dims else None
        if not isinstance(operand, list) or not operand:
            return None
        tensors = operand if isinstance(operand[0], list) else [operand]
        return int(sum(math.prod(tensor) for tensor in tensors)) or None
    except (TypeError, ValueError):
        return None  # Not the nested lists of numbers that it should be.
