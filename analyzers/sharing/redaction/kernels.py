"""Names of GPU kernels without the names of the job: the words that rules look for, and a hash of the name."""

import re
from functools import cache

from esprof.analyzers.sharing.redaction.hashed import hashed

_WORDS = re.compile(
    "|".join(
        (
            # Kernels of torch.compile by their kind (views/launching.py).
            r"\Atriton_[a-z]{3}_",
            # Products of matrices and convolutions (views/kernel_names.py, findings/kernels/fp32_matmul.py).
            r"nvjet_[a-z]{3}|[a-z]?\d{0,5}gemm(?:_(?:fp|bf)16)?|_h(?=\w*gemm)|gemv|cutlass(?:::Kernel2?(?![a-z]))?|xmma|Cijk_",
            r"conv(?:ert)?|wgrad|dgrad|fprop|winograd|scudnn|_simt_|_ffma_|tensorop|_mha_",
            # Their precision and the size of elements (views/device_peaks.py, views/operation_counts.py).
            r"tf32|bf16|bfloat16|fp?16|fp?32_?|f64|fp8|half|HHS|HBS|BBS|16816|s8_|i8|e4m3|e5m2|double|float|int64|long",
            # Attention (views/attention_kernels.py).
            r"cudnn_generated_fort_native_sdpa|sdpa|flashinfer|(?:Batch|Single)(?:Prefill|Decode)With|KVCache",
            r"flash_?mla|splitkv_mla|FlashAttention(?:Forward|Backward)Sm\d|flash::FlashAttn(?:Fwd|Bwd)|Sm\d|_Sm\d",
            r"flash_(?:fwd|bwd)_|fmha_cutlass[FB]_|fmhaSm\d|fmha_v2|fmha_(?:fwd|bwd)_hd|Fmha(?:Fwd|Bwd)?|fmha|flash|aiter",
            r"PyTorchMemEffAttention|flex_attention|flex_decoding|ck_tile|paged_attention_(?:v1|v2|ll4mi)|triton",
            r"kernel_unified_attention|kernel_paged_attention|_fwd_(?:grouped_)?kernel_stage[12]",
            r"attn_(?:fwd|bwd)|bwd_kernel_(?:dk_dv|dq|fuse)",
            r"softmax|backward",
        )
    ),
    re.IGNORECASE,
)
"""Literal words only: a pattern such as `ck_tile\\w*Fmha` would let through what stands between."""

_REPEATED = re.compile(r"(\.[A-Za-z]\w*)\1+(?!\w)")
"""Matches one word several times, such as the types of a template's arguments."""

_WORD_LETTER = re.compile(r"\w")


@cache
def redacted_kernel(name: str) -> str:
    """`k_sgemm_-dtvqhgnxrw` for `volta_sgemm_128x64_nt`; `kernel-…` if rules know no word of it.

    What stands between two words becomes `_` or `.`, so that a word begins and ends where it did.
    """
    kept, end = [], 0
    for word in _WORDS.finditer(name):
        kept += [_between(name[end : word.start()], is_first=not end), word[0]]
        end = word.end()
    if not kept:
        return hashed("kernel", name)
    return hashed(_REPEATED.sub(r"\1", "".join(kept) + _between(name[end:])), name)


def _between(gap: str, *, is_first: bool = False) -> str:
    if is_first and len(gap) > 1:  # Nothing that stood inside may stand at the beginning.
        return f"k{_between(gap[1:]) if len(gap) > 1 else ''}"
    letters = [bool(_WORD_LETTER.match(letter)) for letter in gap]
    if all(letters):
        return "_" if gap else ""
    return ("_" if letters[0] else "") + "." + ("_" if letters[-1] else "")
