"""Names of GPU kernels for people, and the kind of work that they indicate."""

import re
from collections.abc import Iterable

from esprof.replay.whatif.grammar import literal

MULTIPLIES = re.compile(
    r"gemm|gemv|cutlass|nvjet|xmma|Cijk_|conv(?!ert)|wgrad|dgrad|fprop|winograd|scudnn|flash|fmha|attn_fwd|attn_bwd|triton_tem"
    r"|_mha_|sdpa",
    re.IGNORECASE,
)
"""Matches kernels that multiply matrices, convolve, or compute attention: of cuBLAS, CUTLASS, cuDNN, rocBLAS (`Cijk_`),
MIOpen, FlashAttention, and templates of torch.compile."""

_GENERIC = re.compile(r"(?:cutlass::Kernel2?|_ZN7cutlass6Kernel2?I)")
_MAX_LABEL = 44


def short_kernel(name: str) -> str:
    """A kernel's name without template arguments and return type, which are long."""
    plain, depth = [], 0
    for letter in name.replace("(anonymous namespace)::", "").split("(", 1)[0]:
        depth += letter == "<"
        if not depth:
            plain.append(letter)
        depth -= letter == ">" and depth > 0
    return re.sub(r"^void\s+", "", "".join(plain)).strip() or name


def kernel_label(name: str, operation: str | None) -> str:
    """A short name that tells kernels of one template apart: by the argument of CUTLASS, else by the operation that launches
    them."""
    if _GENERIC.search(name) and (inner := re.search(r"<([\w:]+)", name)):
        return _cut(inner[1])
    short = _cut(short_kernel(name).split("::")[-1])
    return f"{short} of {_cut(operation)}" if operation and "<" in name else short


def faster(names: Iterable[str], factor: float) -> str:
    """The what-if in which the kernels of these names are `factor` times as fast."""
    return f"kernel[^({'|'.join(map(literal, sorted(names)))})$]={factor:.5g}x"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
