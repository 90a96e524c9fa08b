"""Frames of Python without the files and functions of the job.

Rules tell the job's own code from that of libraries, and know a few functions of PyTorch. What tells them so stays in a
file's name; everything else becomes a hash.
"""

import re
from functools import cache

from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.replay.cpu.frames import frame

_KNOWN_FILE = re.compile(
    r"(/|^)((?:python\d+\.\d+/)?(?:(?:site|dist)-packages/)?torch/"
    r"(?:distributed/distributed_c10d|autograd/graph|autograd/profiler)\.py)$"
)
"""Files of PyTorch whose functions rules know."""

_LIBRARY = re.compile(
    r"(/|^)((?:lib/)?(?:python\d+\.\d+/)?(?:(?:site|dist)-packages/)?torch/(?:(?:nn|optim|utils|distributed|autograd|profiler)/)?"
    r"|esprof/recorder/(?:injected|shared|hook)/"
    r"|(?:lib/)?python\d+\.\d+/(?:(?:site|dist)-packages/(?:(?:safetensors|transformers|accelerate|lightning|pytorch_lightning)/)?)?"
    r"|(?:site|dist)-packages/(?:(?:safetensors|transformers|accelerate|lightning|pytorch_lightning)/)?)"
)
"""Folders by which code is known to be a library's, and libraries that save the state of a training."""

_KNOWN_FUNCTION = re.compile(
    r"_call_impl|forward|backward|_engine_run_backward|__next__|__getitem__|__getitems__|<\w+>"
)
"""Functions that rules know, and those without a name: `<lambda>`, `<listcomp>`."""

_ANONYMOUS = re.compile(r"(?:\.<locals>\.<\w+>)+$")
_SAVES = re.compile(r"(?:^|[._])(save|snapshot|checkpoint|ckpt|dump)(?:_\w*)?$", re.IGNORECASE)
_BUILT_IN = re.compile(r"<built-in function (?:sleep|collect)>|run_backward of |_distributed_c10d")


@cache
def redacted_frame(text: str) -> str:
    """The new text of a frame, `file(line): function`; the line stays."""
    found = frame(text)
    if not found.file:
        return _built_in(text)
    return f"{redacted_file(found.file)}({found.line}): {redacted_function(found.file, found.function)}"


def redacted_stack(stack: str) -> str:
    """The new text of a stack of frames, one a line."""
    return "\n".join(map(redacted_frame, stack.split("\n")))


@cache
def redacted_file(file: str) -> str:
    """`src-….py` for a file of the job; a file of a library keeps the folder that says so."""
    if known := _KNOWN_FILE.search(file):
        return known[1] + known[2]
    if file.startswith("<"):
        return f"<frozen {hashed('lib', file)}>" if file.startswith("<frozen ") else f"<{hashed('lib', file)}>"
    if library := _LIBRARY.search(file):
        return f"{library[1]}{library[2]}{hashed('lib', file[library.end() :])}.py"
    if frame(f"{file}(1): f").origin == "other":  # The standard library, or one that the rules list, by its first name.
        package, _, inside = file.partition("/")
        return f"{package}/{hashed('lib', inside)}.py" if inside else package
    return f"{hashed('src', file)}.py"


@cache
def redacted_function(file: str, function: str) -> str:
    """`fn-…` for a function that rules do not know."""
    if _KNOWN_FUNCTION.fullmatch(function) or _KNOWN_FILE.search(file):
        return function
    anonymous = _ANONYMOUS.search(function)
    named = function[: anonymous.start()] if anonymous else function
    saves = _SAVES.search(named)
    return hashed("fn", named) + (f".{saves[1].lower()}" if saves else "") + (anonymous[0] if anonymous else "")


def _built_in(text: str) -> str:
    known = _BUILT_IN.search(text)
    if known and known[0] == text:
        return text
    return f"<built-in {hashed('fn', text)}{f' {known[0]}' if known else ''}>"
