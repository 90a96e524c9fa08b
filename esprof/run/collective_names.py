"""Names of collectives and element types, in the spellings of PyTorch and NCCL."""

_WORDS = (
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
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
    ("receive", "recv"),
)
"""(substring of a lower-case name without underscores and hyphens, normalised name). The first match counts, so `allreduce`
precedes `reduce`."""

ITEM_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "c10::half": 2,
    "c10::bfloat16": 2, "int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8, "short": 2, "char": 1,
    "byte": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i8": 1,
    "u8": 1, "complexhalf": 4, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Element sizes by the names that `record_param_comms` and the Flight Recorder (`Float`), `Input type` (`c10::Half`) and
NCCL's kernels (`f16`) use, lower-cased."""


def collective_word(name: str) -> str | None:
    """Return the normalised collective (`all_reduce`) of the name of a kernel, annotation or call."""
    plain = name.lower().replace("_", "").replace("-", "").replace("coalesced", "")
    return next((word for key, word in _WORDS if key in plain), None)


def names_a_collective(annotation: str) -> bool:
    """Whether an annotation is torch's for the launch of a NCCL kernel."""
    return annotation.startswith("nccl:")
