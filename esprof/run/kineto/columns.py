"""Convert the rows of a trace to the columns of the event table: kinds, thread roles, steps and collectives."""

import re
from typing import Any

import numpy as np
import pyarrow as pa

from esprof.run.collective_names import names_a_collective
from esprof.run.groups import Group
from esprof.run.kineto.categories import kind_of
from esprof.run.kineto.collectives import Launches, moved_by
from esprof.run.kineto.launches import lanes, links, with_unrecorded_calls
from esprof.run.kineto.messages import with_peers, without_annotations
from esprof.run.kineto.rows import Texts, TraceRows
from esprof.run.kineto.scan import MISSING
from esprof.run.kineto.steps.blocks import WorkInOrder, find_blocks
from esprof.run.kineto.steps.trace_steps import (
    RECORDERS_STEP,
    STEP_NAMES,
    TraceSteps,
    WorkOfSteps,
    by_annotations,
    by_optimizers,
    marked,
)
from esprof.run.raw import call_marks, message
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.raw.passes import pass_of
from esprof.run.run import RunWarning, WarningCode
from esprof.run.schema import EST_STEP_PREFIX, EVENTS, KINDS, STEPS, Table, table

_EST = re.compile(rf"{EST_STEP_PREFIX}(\d{{1,9}})$")
_BACKWARD = re.compile(r"^autograd::engine::|Backward\d*$|AccumulateGrad$")
_COLLECTIVE_KERNEL = re.compile(
    r"nccl(Dev)?Kernel|^nccl|^rccl|^hcom_|^hccl"
    r"|(multimem|one_?shot|two_?shot|symm_mem)\w*(all_?reduce|all_?gather|reduce_?scatter)"
    r"|(all_?reduce|all_?gather|reduce_?scatter)\w*(one_?shot|two_?shot|lamport)"
    r"|cross_device_reduce",
    re.IGNORECASE,
)
"""Kernels of NCCL, RCCL, HCCL and symmetric memory (PyTorch, FlashInfer, TensorRT-LLM); all-reduces of vLLM and SGLang."""

_ON_HOST = ("op", "runtime", "loader", "annotation", "step", "python")
"""Kinds of events of a CPU. In a trace without any, ranges on the GPU stand in for the annotations that they repeat."""

_NONE = -1
_CODE = {kind: code for code, kind in enumerate(KINDS)}
_ROLES = ("main", "autograd", "comm", "other")
_MAIN, _AUTOGRAD, _COMM, _OTHER = range(len(_ROLES))


def event_table(
    rows: TraceRows, times: tuple[np.ndarray, np.ndarray], groups: dict[str, Group], steps: TraceSteps | None = None
) -> tuple[Table, Table | None, tuple[RunWarning, ...]]:
    """Build the event table of one rank, sorted by start, and the table of its steps if no event marks them.

    `times` is (start ns, duration ns) per row; `groups` maps this process's group names to groups; `steps` are the steps
    if known from another source.
    """
    kinds, on_gpu = _kinds(rows)
    if not (_are(kinds, *_ON_HOST) & ~on_gpu).any():
        ranges = rows.texts("cat").map(lambda category: category.lower() == "gpu_user_annotation", bool, False)
        kinds[ranges], on_gpu[ranges] = _CODE["annotation"], True
    if steps is not None:
        kinds[_are(kinds, "step")] = _CODE["annotation"]
    keep = np.flatnonzero(kinds != _NONE)
    starts, durations = times
    # Ties: the longer first, so that a parent precedes its children.
    order = keep[np.lexsort((-durations[keep], starts[keep]))]
    return _sorted_table(rows.pick(order), kinds[order], on_gpu[order], starts[order], durations[order], groups, steps)


def _kinds(rows: TraceRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each row's kind in KINDS, or -1; and whether it ran on a stream.

    The category determines whether a row ran on a stream, not the arguments: ROCm's launch calls also name a stream.
    """
    kinds = rows.texts("cat").map(_kind_of_category, np.int64, _NONE)
    on_gpu = _are(kinds, "kernel", "memcpy", "memset", "sync")
    for of, kind_of_name in ((("op", "annotation"), _kind_of_host_name), (("kernel",), _kind_of_kernel_name)):
        at = np.flatnonzero(_are(kinds, *of))
        by_name = rows.pick(at).texts("name").map(kind_of_name, np.int64, _NONE)
        kinds[at] = np.where(by_name == _NONE, kinds[at], by_name)
    _prefer_the_recorders_steps(rows, kinds)
    return kinds, on_gpu


def _prefer_the_recorders_steps(rows: TraceRows, kinds: np.ndarray) -> None:
    """Make the steps that a profiler of the job marks plain annotations, where the recorder has marked steps as well."""
    at = np.flatnonzero(_are(kinds, "step"))
    ours = rows.pick(at).texts("name").map(lambda name: name.startswith(RECORDERS_STEP), bool, False)
    if ours.any():
        kinds[at[~ours]] = _CODE["annotation"]


def _kind_of_category(category: str) -> int:
    kind = kind_of(category)
    return _CODE[kind] if kind else _NONE


def _kind_of_host_name(name: str) -> int:
    if name.startswith(STEP_NAMES):
        return _CODE["step"]
    if name.startswith("enumerate(DataLoader)#"):
        return _CODE["loader"]
    if name.startswith((message.PREFIX, call_marks.PREFIX)) or pass_of(name) is not None:
        return _CODE["annotation"]
    if name.startswith(MODULE_PREFIX):
        return _CODE["python"]
    return _CODE["collective"] if name.startswith("gloo:") else _NONE


def _kind_of_kernel_name(name: str) -> int:
    return _CODE["collective"] if _COLLECTIVE_KERNEL.search(name) else _NONE


def _are(kinds: np.ndarray, *wanted: str) -> np.ndarray:
    # A lookup table by kind; its last entry, False, is what the kind -1 finds.
    is_wanted: np.ndarray = np.array([*(kind in wanted for kind in KINDS), False])[kinds]
    return is_wanted


def _sorted_table(
    rows: TraceRows,
    kinds: np.ndarray,
    on_gpu: np.ndarray,
    starts: np.ndarray,
    durations: np.ndarray,
    groups: dict[str, Group],
    given: TraceSteps | None,
) -> tuple[Table, Table | None, tuple[RunWarning, ...]]:
    """`event_table` of rows that are sorted and have a kind each."""
    names = rows.texts("name").filled("")
    tid, stream, device = (
        np.where(mask, rows.numbers(key), MISSING)
        for key, mask in (("tid", ~on_gpu), ("stream", on_gpu), ("device", on_gpu))
    )
    is_work = on_gpu & ~_are(kinds, "sync")
    device, stream = lanes(
        is_work, {"pid": rows.numbers("pid"), "tid": rows.numbers("tid"), "stream": stream, "device": device}
    )
    external = rows.numbers("External id")
    external = np.where(external == MISSING, rows.numbers("external id"), external)
    linked = links(_are(kinds, "runtime"), on_gpu, rows.numbers("correlation"), external, _are(kinds, "op"))
    launches = Launches(starts, starts + durations, tid, linked.row)
    if not (_are(kinds, *_ON_HOST) & ~on_gpu).any():  # GPU work stands for its launch, and streams for threads.
        itself = np.where(is_work & ~_are(kinds, "annotation"), np.arange(len(kinds)), -1)
        launches = Launches(starts, starts + durations, stream, itself)
    steps, warnings = (given, ()) if given is not None else _steps(names, kinds, launches)
    roles = _thread_roles(names, kinds, tid)
    columns = {
        "name": _text_column(names),
        "kind": _text_column(Texts(kinds, list(KINDS))),
        "start_ns": starts,
        "dur_ns": durations,
        "pid": _int_column(rows.numbers("pid")),
        "tid": _int_column(tid),
        "thread_role": _text_column(roles),
        "device": _int_column(device, np.int32),
        "stream": _int_column(stream),
        "correlation": _int_column(linked.correlation),
        "external_id": _int_column(external),
        "step": _int_column(_step_of(steps, stream, launches), np.int32),
        "autograd_seq": _int_column(rows.numbers("Sequence number")),
        "fwd_tid": _int_column(rows.numbers("Fwd thread id")),
        "sync_stream": _int_column(rows.numbers("wait_on_stream")),
        "sync_correlation": _int_column(rows.numbers("wait_on_cuda_event_record_corr_id")),
        "shapes": _text_column(rows.texts("Input Dims").each(_one_line)),
        "est": _int_column(_ests(names, kinds, roles, stream, launches), np.int32),
    }
    events = table(columns | _moved(rows, names, kinds, launches, groups), EVENTS)
    has_step_events = _are(kinds, "step").any()
    events = without_annotations(with_unrecorded_calls(events, linked))
    return events, None if steps is None or has_step_events else _step_table(steps), warnings


def _thread_roles(names: Texts, kinds: np.ndarray, tid: np.ndarray) -> Texts:
    """`main`, `autograd`, `comm` (gloo's threads) or `other`; none for what runs on a GPU."""
    threads = _int_column(tid).dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)

    def threads_of(mask: np.ndarray) -> np.ndarray:
        found: np.ndarray = threads[mask & (threads >= 0)]
        return found

    working = threads_of(_are(kinds, "op"))
    roles = np.full(threads.max(initial=-1) + 2, _OTHER)
    roles[threads_of(_are(kinds, "collective"))] = _COMM
    roles[working] = _OTHER
    roles[threads_of(names.map(_is_backward, bool))] = _AUTOGRAD
    # The main thread is the busiest one with steps or loader calls, else with operations outside backward, else with any.
    for candidates in (threads_of(_are(kinds, "step", "loader")), working[roles[working] != _AUTOGRAD], working):
        if len(candidates):
            roles[_busiest(candidates)] = _MAIN
            break
    roles[-1] = -1  # What is on no thread has no role.
    return Texts(roles[threads], list(_ROLES))


def _is_backward(name: str) -> bool:
    return _BACKWARD.search(name) is not None


def _busiest(threads: np.ndarray) -> int:
    """The number that occurs most often; of several, the one that comes first."""
    return int(threads[np.bincount(threads)[threads].argmax()])


def _steps(names: Texts, kinds: np.ndarray, launches: Launches) -> tuple[TraceSteps | None, tuple[RunWarning, ...]]:
    """Return the steps of the trace: marked by the profiler, ended by optimizers, begun by annotations, or repeated."""
    rows = np.flatnonzero(_are(kinds, "step"))
    if len(rows):
        return marked(Texts(names.codes[rows], names.values), launches.start_ns[rows], launches.end_ns[rows]), ()
    rows = np.flatnonzero(_are(kinds, "op", "annotation"))
    on_threads = Texts(names.codes[rows], names.values)
    if found := by_optimizers(on_threads, launches.tid[rows], launches.start_ns[rows], launches.end_ns[rows]):
        steps, together = found
        ends = "each Optimizer.step ends" if together == 1 else f"{together} Optimizer.steps end"
        return steps, (RunWarning("steps-by-optimizer", f"the trace has no ProfilerStep; {ends} a step"),)
    rows = rows[_are(kinds, "annotation")[rows] & (launches.tid[rows] != MISSING)]
    marks = Texts(names.codes[rows], names.values)
    work = np.flatnonzero((launches.row >= 0) & ~_are(kinds, "sync"))
    work = work[np.argsort(launches.start_ns[launches.row[work]], kind="stable")]
    launched = WorkOfSteps(launches.start_ns[launches.row[work]], (launches.end_ns - launches.start_ns)[work])
    starts, ends = launches.start_ns[rows], launches.end_ns[rows]
    annotated = by_annotations(marks, launches.tid[rows], starts, ends, _graphs(names, kinds, launches) or launched)
    if annotated:
        text = f"the trace has no ProfilerStep; each annotation of the loop begins a step ({annotated[1]})"
        return annotated[0], (RunWarning(WarningCode.STEPS_BY_ANNOTATION, text),)
    blocks = find_blocks(WorkInOrder(Texts(names.codes[work], names.values), launched.at_ns, launches.start_ns[work]))
    in_blocks = blocks.as_steps(from_end=bool(_are(kinds, "collective").any())) if blocks else None
    if in_blocks:
        text = f"the trace has no step marks; each block of repeated GPU work counts as one ({blocks})"
        return in_blocks, (RunWarning(WarningCode.STEPS_BY_BLOCK, text),)
    repeats = f" (GPU work repeats in it: {blocks})" if blocks else ""
    return None, (
        RunWarning(WarningCode.NO_STEPS, f"the trace has no step marks; all times are of its window{repeats}"),
    )


def _graphs(names: Texts, kinds: np.ndarray, launches: Launches) -> WorkOfSteps | None:
    """Launches of CUDA graphs without recorded kernels, each of one unit: their GPU time is unknown. None without any."""
    graphs = np.flatnonzero(names.map(lambda name: "GraphLaunch" in name, bool) & _are(kinds, "runtime"))
    graphs = graphs[~np.isin(graphs, launches.row)]
    return WorkOfSteps(launches.start_ns[graphs], np.ones_like(graphs)) if len(graphs) else None


def _step_of(steps: TraceSteps | None, stream: np.ndarray, launches: Launches) -> np.ndarray:
    """Number of the step in which each row was launched: a GPU row belongs to the step of its launch. 0 without steps."""
    return np.zeros(len(stream), np.int64) if steps is None else steps.of(_launched(stream, launches))


def _step_table(steps: TraceSteps) -> Table:
    columns = {"step": steps.number, "start_ns": steps.start_ns, "dur_ns": steps.end_ns - steps.start_ns}
    return table(columns | {"phase": ["timed"] * len(steps.number)}, STEPS)


def _launched(stream: np.ndarray, launches: Launches) -> np.ndarray:
    """When each row was launched (ns): a row on a stream when it was launched, any other when it began.

    A row on a stream whose launch was not recorded was launched before the window: 0, so it belongs to no step or EST step.
    """
    launched = np.where(launches.row >= 0, launches.start_ns[launches.row], 0)
    return np.where(stream >= 0, launched, launches.start_ns)


def _ests(names: Texts, kinds: np.ndarray, roles: Texts, stream: np.ndarray, launches: Launches) -> np.ndarray:
    """Return the logical worker (EST) in whose step training threads launched each row; MISSING for other rows."""
    number = names.map(_est_number, np.int64, MISSING)
    est_steps = np.flatnonzero(_are(kinds, "annotation") & (number != MISSING))
    if not len(est_steps):
        return np.full(len(kinds), MISSING)
    launched = _launched(stream, launches)
    # The last EST step that started before each launch, or the first of all: `inside` excludes it if it does not fit.
    at = np.searchsorted(launches.start_ns[est_steps], launched, side="right") - 1
    own = est_steps[np.maximum(at, 0)]
    inside = (launches.start_ns[own] <= launched) & (launched < launches.end_ns[own])
    trains = (stream >= 0) | roles.map(lambda role: role in ("main", "autograd"), bool)
    return np.where(inside & trains, number[own], MISSING)


def _est_number(name: str) -> int:
    match = _EST.match(name)
    return int(match.group(1)) if match else MISSING


def _one_line(dims: bytes) -> str:
    """`Input Dims` as torch writes them, `[[2, 3], []]`: indented JSON has them on many lines."""
    return b"".join(dims.split()).replace(b",", b", ").decode(errors="replace")


def _moved(
    rows: TraceRows, names: Texts, kinds: np.ndarray, launches: Launches, groups: dict[str, Group]
) -> dict[str, pa.Array]:
    """Return the columns for collectives; `in_bytes` includes copies."""
    at = np.flatnonzero(_are(kinds, "collective"))
    calls = names.map(lambda name: name == "record_param_comms", bool) & ~_are(kinds, "runtime")
    calls |= names.map(names_a_collective, bool) & _are(kinds, "annotation")
    moved = moved_by(rows, at, np.flatnonzero(calls), launches, groups)
    messages = np.flatnonzero(_are(kinds, "annotation") & names.map(lambda name: name.startswith(message.PREFIX), bool))
    moved = with_peers(moved, at, messages, names, launches, groups)

    def spread(values: np.ndarray, elsewhere: np.ndarray | int = MISSING) -> np.ndarray:
        column = np.full(len(kinds), elsewhere)
        column[at] = values
        return column

    def spread_texts(values: list[str | None]) -> pa.Array:
        encoded = pa.array(values, pa.string()).dictionary_encode()
        position = spread(np.arange(len(at)))
        return encoded.take(pa.array(position, mask=position == MISSING))

    return {
        "group": spread_texts(moved.group),
        "coll_seq": _int_column(spread(moved.coll_seq)),
        "collective": spread_texts(moved.collective),
        "is_p2p": pa.array(spread(moved.is_p2p, False), mask=~_are(kinds, "collective")),
        "peer": _int_column(spread(moved.peer), np.int32),
        "channel": spread_texts(moved.channel),
        "in_bytes": _int_column(spread(moved.in_bytes, rows.numbers("bytes"))),
        "out_bytes": _int_column(spread(moved.out_bytes)),
        "dtype": spread_texts(moved.dtype),
    }


def _int_column(numbers: np.ndarray, dtype: Any = np.int64) -> pa.Array:
    """Return an integer column; values that are missing or do not fit `dtype` are null."""
    converted = numbers.astype(dtype)
    return pa.array(converted, mask=(numbers == MISSING) | (converted != numbers))


def _text_column(texts: Texts) -> pa.DictionaryArray:
    """Return a text column; its dictionary has the used values, in order of appearance."""
    used = pa.array(texts.codes, mask=texts.codes < 0).dictionary_encode()
    values = [texts.values[code] for code in used.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(used.indices, pa.array(values, pa.string()))
