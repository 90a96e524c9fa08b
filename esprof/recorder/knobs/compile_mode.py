"""`compile=max-autotune`: products of matrices by the fastest of several kernels that torch.compile generates and times.

Whether the change took effect is read from the names of the generated kernels, since a mode may have none: it keeps the
library's kernel where that is the fastest, and on a CPU it has kernels for few products of a training job.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .knob import Knob, KnobState, Reader

_MODE = "max-autotune"
_LIBRARY = "default"
"""Value that is read back if the library, such as MKL or cuBLAS, multiplies all matrices."""

_OF_TEMPLATE = re.compile(r"\btriton_tem_(?!\w*flex_)\w|(?<!_kernel)_micro_gemm\b")
"""Names that only code of inductor's templates for products has: kernels of Triton, and the innermost function of C++
kernels. FlexAttention has templates of its own, in every mode."""


def _spelled(text: str) -> str:
    if text != _MODE:
        raise ValueError(f"its value can only be {_MODE!r}")
    return text


def _install(value: str | None) -> Reader:
    import torch

    if value is not None:
        inductor = torch._TorchCompileInductorWrapper
        original = inductor.apply_mode

        def apply_mode(self: Any, mode: str | None) -> None:
            original(self, value)

        inductor.apply_mode = apply_mode  # type: ignore[method-assign]
    return _read


def _read() -> KnobState:
    sources = list(_generated())
    if not sources:
        return KnobState(None, _why_nothing())
    if any(_OF_TEMPLATE.search(source) for source in sources):
        return KnobState(_MODE)
    return KnobState(_LIBRARY, "none of its kernels is from a template")


def _generated() -> Iterator[str]:
    """Source of each graph that inductor has compiled in this process. Modules without `call` are kernels it tried."""
    cache = sys.modules.get("torch._inductor.codecache")
    for module in cache.PyCodeCache.modules if cache is not None else ():
        if hasattr(module, "call") and module.__file__:
            with suppress(OSError):
                yield Path(module.__file__).read_text(errors="replace")


def _why_nothing() -> str:
    if "torch._inductor.codecache" not in sys.modules:
        return "the process compiles nothing with torch.compile and inductor"
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except RuntimeError:
        return "there is no C++ compiler, which inductor needs"
    return "inductor has compiled nothing yet"


KNOB = Knob(
    name="compile",
    is_term=False,
    example=_MODE,
    sets="`mode` of each `torch.compile` with the backend inductor",
    reads="names of the kernels that inductor generated: whether any is from a template for products of matrices",
    spelled=_spelled,
    install=_install,
)
