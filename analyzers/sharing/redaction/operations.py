"""Names of operations, calls and annotations without the names of the job."""

import re
from collections.abc import Callable
from functools import cache

from esprof.analyzers.sharing.redaction.frames import redacted_frame
from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.analyzers.sharing.redaction.kernels import redacted_kernel
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.run.collective_names import collective_word
from esprof.run.raw.call_marks import PREFIX as CALL_MARK
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import EST_STEP_PREFIX

_MEMORY = "Pageable|Pinned|Device|Array|Managed|Unified|Unknown"

_PUBLIC = re.compile(
    "|".join(
        (
            # Operations of PyTorch, and nodes of autograd that it generates: those of a job have no number.
            r"(?:aten|c10d|_?c10d_functional)::\w+(?:\.\w+)?",
            r"record_param_comms",
            rf"(?:{AUTOGRAD_NODE})?(?:torch::autograd::\w+|\w+Backward\d+|CompiledFunctionBackward)",
            r"torch(?:\.|::)distributed(?:\.ddp)?(?:\.|::)reducer::\w+",
            # Wrappers and loaders of PyTorch.
            r"DistributedDataParallel\.forward|FullyShardedDataParallel\.\w+",
            r"enumerate\(DataLoader\)#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.__next__",
            r"Torch-Compiled Region(?:: \d+/\d+)?|CompiledFunction|_compile\.compile_inner \(dynamo_timed\)",
            # Collectives.
            r"(?:nccl|rccl|gloo|mpi|ucc|hccl|xccl):[a-z_]+(?: \d+(?:->|<-)\d+)?",
            r"(?:nccl|rccl)(?:Dev)?Kernel_\w+",
            # Steps.
            rf"(?:ProfilerStep|esprof\.step|{EST_STEP_PREFIX.rstrip('#')})#\s*\d+|step \d+",
            # Passes of a pipeline.
            r"PP:\d+[FBIW]\d+",
            # What the recorder knows of calls of modules.
            rf"{CALL_MARK}[a-z0-9 ]+",
            # Calls, copies and records of the GPU runtime.
            r"(?:cuda|cu|hip)[A-Z]\w*|INVALID",
            rf"Mem(?:cpy (?:HtoD|DtoH|DtoD|HtoH|PtoP) \((?:{_MEMORY}) -> (?:{_MEMORY})\)|set \((?:{_MEMORY})\))",
            r"(?:Stream|Event|Context|Device) (?:Sync|Synchronize|Wait|Wait Event|Query)",
        )
    )
)
"""Names that rules or the replay know, and that every job shares."""

_PREFIX = re.compile(
    rf"{AUTOGRAD_NODE}|Optimizer\.(?:step|zero_grad)#|FSDP::\w+|## Call CompiledFxGraph |{MODULE_PREFIX}|"
    r"(?:nccl|rccl)(?:Dev)?Kernel_\w+"
)
"""Beginnings that stay in front of the hash of the rest."""

_SUFFIX = re.compile(r"Backward$| \(dynamo_timed\)$|_\d+$")
"""Ends that stay behind the hash: of a job's own backward passes, of compilations, and the number of a module."""

_KIND = {"op": "op", "runtime": "call", "memcpy": "copy", "memset": "copy", "sync": "sync", "annotation": "mark"}
"""Kind of an event -> first word of its new name."""

_NUMBER = re.compile(r"\d+")


@cache
def redacted_operation(kind: str, name: str) -> str:
    """The new name of an event of this kind (`schema.KINDS`)."""
    if _PUBLIC.fullmatch(name):
        return name
    return _RULES.get(kind, _other)(_KIND.get(kind, "op"), name)


def _other(word: str, name: str) -> str:
    prefix, suffix = _PREFIX.match(name), _SUFFIX.search(name)
    before, after = prefix[0] if prefix else "", suffix[0] if suffix else ""
    inner = name[len(before) : len(name) - len(after)]
    return f"{before}{hashed(word, inner)}{after}" if inner else f"{before}{after}"


def _annotation(word: str, name: str) -> str:
    """Numbers stay: those in the annotations of steps are the numbers of the steps (`replay.steps`)."""
    if _PREFIX.match(name):
        return _other(word, name)
    numbers = _NUMBER.findall(name)
    return hashed(word, _NUMBER.sub("#", name)) + (f"({','.join(numbers)})" if numbers else "")


def _collective(word: str, name: str) -> str:
    if _PREFIX.match(name):
        return name.partition("(")[0]  # A kernel of NCCL: its arguments are types.
    return f"{hashed('collective', name)}.{collective_word(name) or 'unknown'}"


def _python(word: str, name: str) -> str:
    return _other("module", name) if name.startswith(MODULE_PREFIX) else redacted_frame(name)


_RULES: dict[str, Callable[[str, str], str]] = {
    "annotation": _annotation,
    "collective": _collective,
    "kernel": lambda word, name: redacted_kernel(name),
    "python": _python,
}
