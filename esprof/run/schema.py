"""Tables of a Run: the event table, with one row per event, and side tables, as Arrow schemas with numpy views."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.dictionary(pa.int32(), pa.string())

KINDS = (
    "op",
    "runtime",
    "kernel",
    "memcpy",
    "memset",
    "sync",
    "collective",
    "loader",
    "annotation",
    "step",
    "python",
    "checkpoint",
)
"""Values of the column `kind`. A NCCL kernel or the work of a gloo collective is a `collective`; the CPU call that launches
it is an `op`."""

EVENTS = pa.schema(
    [
        ("name", _TEXT),
        ("kind", _TEXT),
        ("start_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("pid", pa.int64()),
        ("tid", pa.int64()),
        ("thread_role", _TEXT),
        ("device", pa.int32()),
        ("stream", pa.int64()),
        ("correlation", pa.int64()),
        ("external_id", pa.int64()),
        ("step", pa.int32()),
        ("autograd_seq", pa.int64()),
        ("fwd_tid", pa.int64()),
        ("sync_stream", pa.int64()),
        ("sync_correlation", pa.int64()),
        ("group", _TEXT),
        ("coll_seq", pa.int64()),
        ("collective", _TEXT),
        ("is_p2p", pa.bool_()),
        ("peer", pa.int32()),
        ("channel", _TEXT),
        ("in_bytes", pa.int64()),
        ("out_bytes", pa.int64()),
        ("dtype", _TEXT),
        ("shapes", _TEXT),
        ("est", pa.int32()),
    ]
)
"""`events/`: profiler events, one row per event. A column that the source lacks is null.

- `name`: name of the operation, kernel, call or annotation;
- `kind`: one of `KINDS`;
- `start_ns`: since the Unix epoch, on the rank's own clock;
- `dur_ns`: duration;
- `pid`: process, as in the trace;
- `tid`: thread of an event on the CPU;
- `thread_role`: `main`, `autograd`, `comm` (threads of gloo) or `other`; null on a GPU;
- `device`: GPU of an event on a GPU;
- `stream`: stream of an event on a GPU;
- `correlation`: number that a call of the GPU runtime shares with the work that it launched;
- `external_id`: number that torch.profiler gives an operation and the work that it launched;
- `step`: step in which the event was launched;
- `autograd_seq`: number that an operation of the forward pass shares with its backward operation;
- `fwd_tid`: thread of the forward operation, for a backward operation;
- `sync_stream`: stream that a synchronisation waits for;
- `sync_correlation`: `correlation` of the call that recorded the CUDA event it waits for;
- `group`: process group of a collective;
- `coll_seq`: number of the collective in its group;
- `collective`: kind of the collective, such as `all_reduce`;
- `is_p2p`: whether it is a send or a receive;
- `peer`: rank at the other end of a send or receive;
- `channel`: process group, by torch's own name, and tag of a message over gloo, such as `0/7`: its two ends share it;
- `in_bytes`: bytes of a collective's input, or of a copy;
- `out_bytes`: bytes of a collective's output;
- `dtype`: element type of a collective;
- `shapes`: shapes of an operation's inputs; with `record --shapes`, of the same call in a step with stacks;
- `est`: number of the EST (logical worker) that the event belongs to."""

EST_STEP_PREFIX = "EasyScaleThread#"
"""Prefix of the name of the annotation that encloses an EST step; the number of the EST follows."""

STEPS = pa.schema(
    [
        ("step", pa.int32()),
        ("start_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("phase", _TEXT),
        ("samples", pa.int64()),
        ("tokens", pa.int64()),
        ("padding", pa.int64()),
        ("pairs", pa.int64()),
        ("padding_pairs", pa.int64()),
        ("loader_wait_ns", pa.int64()),
        ("cpu_ns", pa.int64()),
        ("ready_ns", pa.int64()),
        ("throttled_ns", pa.int64()),
    ]
)
"""`steps/`: all steps of the job.

- `step`: number of the step;
- `start_ns`: since the Unix epoch, on the rank's own clock;
- `dur_ns`: duration;
- `phase`: `plain` (without profiler), `warmup`, `timed`, `stack` (recorded with stacks, excluded from all timing) or
  `export` (the profiler was started, or its trace written);
- `samples`: number of samples;
- `tokens`: number of all tokens;
- `padding`: tokens that only pad their sequences, null if nothing tells it;
- `pairs`: number of pairs of tokens of one sequence, which attention computes, null if nothing tells padding;
- `padding_pairs`: number of these pairs with a token that only pads;
- `loader_wait_ns`: time that the training thread waited for its DataLoader;
- `cpu_ns`: time that the training thread ran;
- `ready_ns`: time that the training thread waited for a CPU. It slept for the rest of the step;
- `throttled_ns`: time that the process's control groups were stopped at their CPU quota, summed over CPUs, since the last
  step with a value."""

ADDED = {
    "events": ("channel",),
    "steps": ("padding", "pairs", "padding_pairs", "cpu_ns", "ready_ns", "throttled_ns"),
    "stages": ("in_order", "batches", "cpu_ns", "took_ns", "ready_ns", "read_bytes", "read_chars"),
}
"""Columns, by table, that Runs of earlier versions lack; they are null there."""

StageKind = Literal["next", "fetch", "part", "pin", "stage", "background"]

STAGES = pa.schema(
    [
        ("kind", _TEXT),
        ("name", _TEXT),
        ("loader", pa.int32()),
        ("batch", pa.int64()),
        ("worker", pa.int32()),
        ("pid", pa.int64()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("samples", pa.int64()),
        ("workers", pa.int32()),
        ("prefetch", pa.int32()),
        ("in_order", pa.bool_()),
        ("batches", pa.int64()),
        ("cpu_ns", pa.int64()),
        ("took_ns", pa.int64()),
        ("ready_ns", pa.int64()),
        ("read_bytes", pa.int64()),
        ("read_chars", pa.int64()),
    ]
)
"""`stages/`: data loading and marked stages, by `kind`:

- `next`: a call of a DataLoader iterator in the rank
- `fetch`: the preparation of a batch in a loader worker
- `part`: a named part of the preparation of a batch, in a worker or in the rank: `collate`, `decode`, `transform`, or a
  block that the dataset marked with `esprof.stage`
- `pin`: the copy of a batch to pinned memory, by a thread of the rank; without workers it is a `part`
- `stage`: another block that the job marked with `esprof.stage`, or a save while training stops
- `background`: a save from its start until it is durable, while training goes on; or until its state is copied, if its
  name ends with `(staging)`

- `kind`: one of these;
- `name`: name of a `part`, `stage` or save;
- `loader`: number of the pass over a DataLoader, from 0 in each rank; null for a `pin`, stages and saves;
- `batch`: number of the batch in the pass; null for a `pin`, stages and saves;
- `worker`: number of the loader worker;
- `pid`: process that did it;
- `start_ns`, `end_ns`: since the Unix epoch; of a `part`, those of its batch;
- `samples`: number of samples in the batch;
- `workers`: number of the loader's workers;
- `prefetch`: batches that each worker prepares ahead;
- `in_order`: whether the loader keeps the order of its batches; null without workers;
- `batches`: number of batches in a pass, null for a loader without a length;
- `cpu_ns`: CPU time of the thread that called `next` or ran the `part`, or of the worker process;
- `took_ns`: time of a `part`, without parts inside it;
- `ready_ns`: time that the thread which made a batch waited for a CPU;
- `read_bytes`: bytes that the process read from storage while it made a batch;
- `read_chars`: bytes that it asked for by `read`, from storage or from the page cache."""

ACCESSES = pa.schema(
    [
        ("loader", pa.int32()),
        ("batch", pa.int64()),
        ("worker", pa.int32()),
        ("start_ns", pa.int64()),
        ("key", pa.int64()),
        ("items", pa.int64()),
    ]
)
"""`accesses/`: samples that DataLoaders read from map-style datasets, with `record --sample-keys`. One row per sample, in
the order in which their batches were begun.

- `loader`: number of the iterator, as in `stages/`;
- `batch`: number of the batch in the iterator;
- `worker`: number of the loader worker; null if the rank reads its samples itself;
- `start_ns`: start of the preparation of the batch, since the Unix epoch;
- `key`: the sample's index, or a hash of any other key, which is at least 2^62;
- `items`: number of samples of the dataset."""

LABELS = pa.schema([("label", pa.int64()), ("samples", pa.int64())])
"""`labels/`: labels of the samples that the rank trained on, where the job calls `esprof.labels`. One row per label.

- `label`: number of the class;
- `samples`: number of its samples."""

TRAVELS = pa.schema(
    [
        ("step", pa.int32()),
        ("at_ns", pa.int64()),
        ("every", pa.int32()),
        ("own", pa.float64()),
        ("foreign", pa.float64()),
    ]
)
"""`travels/`: scores on a fixed batch of the rank, where the job uses `esprof.ModelTravel`. One row per comparison.

- `step`: number of the last step that had ended;
- `at_ns`: time since the Unix epoch;
- `every`: number of steps since the last average of the models;
- `own`: score of the rank's own model, from 0 to 1;
- `foreign`: mean score of the other ranks' models."""

MEMORY = pa.schema(
    [
        ("step", pa.int32()),
        ("phase", _TEXT),
        ("at_ns", pa.int64()),
        ("allocated", pa.int64()),
        ("reserved", pa.int64()),
        ("peak_allocated", pa.int64()),
        ("rss", pa.int64()),
    ]
)
"""`memory/`: memory of the process and its device, by time. Values that the source lacks are null.

- `step`: the running step;
- `phase`: the phase of `step` that ended at this time, `forward`, `backward` or `optimizer`; null at the end of a step
  whose phases were not sampled;
- `at_ns`: time of the sample, since the Unix epoch;
- `allocated`: bytes that tensors take in the CUDA allocator;
- `reserved`: bytes that the CUDA allocator took from the driver;
- `peak_allocated`: peak of `allocated`, in bytes, since the job's start or last reset. If it differs from the preceding
  row, the peak was reached in between;
- `rss`: resident set size of the process, in bytes."""

ALLOCATIONS = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("step", pa.int32()),
        ("on_gpu", pa.bool_()),
        ("address", pa.int64()),
        ("bytes", pa.int64()),
        ("allocated", pa.int64()),
    ]
)
"""`allocations/`: memory of tensors that was allocated and freed in timed windows and in the step before each, with
`record --memory`, by time.

- `at_ns`: time since the Unix epoch;
- `step`: the running step, null before the first timed one;
- `on_gpu`: whether it is memory of the GPU;
- `address`: address of the memory;
- `bytes`: its size in bytes, negative where it is freed;
- `allocated`: bytes that the allocator has given to tensors then; on a CPU only those of this window."""

MODULES = pa.schema(
    [
        ("name", _TEXT),
        ("own_bytes", pa.int64()),
        ("parameter_bytes", pa.int64()),
        ("output_bytes", pa.int64()),
        ("inputs", _TEXT),
        ("outputs", _TEXT),
    ]
)
"""`modules/`: modules (`nn.Module`) that were called in timed windows, one row per module. Its sizes are those of its first
call in the latest window.

- `name`: its place in the model, as in the events of its calls;
- `own_bytes`: size of its parameters without those of the modules in it;
- `parameter_bytes`: size of the parameters of it and of the modules in it, each parameter once;
- `output_bytes`: size of the tensors that it returned;
- `inputs`: names of the modules whose outputs it takes, directly or after other operations, one per line; null if unknown.
  Only tensors with gradients count;
- `outputs`: the same for what it returns: modules in it, or before it if something bypasses those."""

SAMPLES = pa.schema(
    [("at_ns", pa.int64()), ("dur_ns", pa.int64()), ("cpu_ns", pa.int64()), ("step", pa.int32()), ("stack", _TEXT)]
)
"""`samples/`: stack samples of the training thread, by time: about 50 per second, and 1,000 per second in windows with
stacks.

- `at_ns`: time of the sample, since the Unix epoch;
- `dur_ns`: time before `at_ns` that the sample represents;
- `cpu_ns`: share of `dur_ns` in which the thread ran;
- `step`: the running step;
- `stack`: its Python frames, outermost first, one per line, each as `file(line): function`. The job's files are relative to
  its working directory; files of Python and of installed packages begin with `python3.11/`."""

STACKS = pa.schema(
    [
        ("before", _TEXT),
        ("after", _TEXT),
        ("frame", _TEXT),
        ("call", _TEXT),
        ("dur_ns", pa.int64()),
        ("cpu_ns", pa.int64()),
    ]
)
"""`stacks/`: Python code that the training thread ran without a recorded operation, from windows with stacks.

- `before`, `after`: the top-level operations before and after the gap; the gap is inside `before` if `after` is null;
- `frame`: the innermost line of the job's own code, as in `samples/`;
- `call`: the innermost frame, null if it is `frame`;
- `dur_ns`: duration of the gap;
- `cpu_ns`: share of `dur_ns` in which the thread ran."""


class Table:
    """A read-only view of an Arrow table with numpy columns, for the graph builder and the analyzers."""

    def __init__(self, arrow: pa.Table) -> None:
        self.arrow = arrow
        self._columns: dict[str, np.ndarray] = {}
        self._codes: dict[str, tuple[np.ndarray, list[str]]] = {}

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def ints(self, column: str, missing: int = -1) -> np.ndarray:
        """Values of `column` as int64; null becomes `missing`."""
        if column not in self._columns or missing != -1:
            filled = pc.fill_null(self.arrow[column].cast(pa.int64()), missing)
            values: np.ndarray = filled.to_numpy().astype(np.int64)
            if missing != -1:
                return values
            self._columns[column] = values
        return self._columns[column]

    def codes(self, column: str) -> tuple[np.ndarray, list[str]]:
        """A text column as (int32 code per row, distinct texts); null has code -1. Do not change them: they are kept."""
        if column not in self._codes:
            array = self.arrow[column].combine_chunks()
            if isinstance(array, pa.ChunkedArray):
                array = pa.concat_arrays(array.unify_dictionaries().chunks) if array.num_chunks else pa.array([], _TEXT)
            codes = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
            self._codes[column] = codes, array.dictionary.to_pylist()
        return self._codes[column]

    def texts(self, column: str) -> list[str | None]:
        """A text column as Python strings."""
        codes, values = self.codes(column)
        return [values[code] if code >= 0 else None for code in codes.tolist()]

    def matches(self, column: str, wanted: Callable[[str], object]) -> np.ndarray:
        """Boolean mask of the rows for whose text in `column` `wanted` is true; False for null."""
        codes, texts = self.codes(column)
        # The last entry is that of code -1, null.
        mask: np.ndarray = np.array([*(bool(wanted(text)) for text in texts), False])[codes]
        return mask

    def is_kind(self, *kinds: str) -> np.ndarray:
        """Boolean mask of the rows whose `kind` is one of `kinds`."""
        return self.matches("kind", kinds.__contains__)

    def where(self, mask: np.ndarray) -> "Table":
        """Rows selected by a boolean mask or an index array."""
        picked = self.arrow.filter(pa.array(mask)) if mask.dtype == bool else self.arrow.take(pa.array(mask))
        return Table(picked)

    def to_pandas(self) -> Any:
        return self.arrow.to_pandas()


def table(columns: Mapping[str, Sequence[Any] | np.ndarray | pa.Array], schema: pa.Schema) -> Table:
    """Build a table from columns; missing columns are null."""
    length = len(next(iter(columns.values()), ()))
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(length, field.type))
        elif isinstance(values, pa.Array | pa.ChunkedArray):
            arrays.append(values.cast(field.type) if values.type != field.type else values)
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(values, field.type, from_pandas=False))
    return Table(pa.Table.from_arrays(arrays, schema=schema))
