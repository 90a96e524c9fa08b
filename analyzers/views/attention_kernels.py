"""Implementations of attention, by the names of their kernels and operations."""

import re

_BY_KERNEL = (
    ("cuDNN", r"cudnn_generated_fort_native_sdpa"),
    ("FlashInfer", r"flashinfer|(Batch|Single)(Prefill|Decode)With\w*KVCache"),
    ("FlashMLA", r"flash_?mla|splitkv_mla"),
    ("FlashAttention 4", r"FlashAttention(Forward|Backward)Sm\d"),
    ("FlashAttention 3", r"flash::FlashAttn(Fwd|Bwd)\w*Sm\d"),
    ("FlashAttention 2", r"flash_(fwd|bwd)_(?!\w*triton)"),
    ("memory-efficient (CUTLASS)", r"fmha_cutlass[FB]_|PyTorchMemEffAttention"),
    ("FlexAttention", r"flex_attention|flex_decoding"),
    ("TensorRT-LLM", r"fmhaSm\d|fmha_v2"),
    ("AITER", r"aiter\w*fmha|fmha_(fwd|bwd)_hd"),
    ("Composable Kernel", r"ck_tile\w*Fmha|Fmha(Fwd|Bwd)"),
    ("vLLM paged attention", r"paged_attention_(v1|v2|ll4mi)"),
    ("Triton, of vLLM", r"kernel_unified_attention|^kernel_paged_attention"),
    ("Triton, of SGLang", r"^_fwd_(grouped_)?kernel_stage[12]"),
    ("AOTriton", r"^attn_fwd|^bwd_kernel_(dk_dv|dq|fuse)"),
    ("Triton", r"^_attn_(fwd|bwd)"),
)
"""(implementation, pattern of its kernels); the first match counts."""

_BY_OPERATION = (
    ("cuDNN", r"_scaled_dot_product_cudnn_attention|_cudnn_attention_(forward|backward)"),
    ("FlashAttention", r"_scaled_dot_product_flash_attention|_flash_attention_(forward|backward)|^flash_attn"),
    ("memory-efficient", r"_scaled_dot_product_efficient_attention|_efficient_attention_(forward|backward)"),
    ("math", r"_scaled_dot_product_attention_math"),
)
"""(implementation, pattern of the operations that launch its kernels), for kernels whose names tell nothing."""


def of_kernel(name: str) -> str | None:
    """The implementation of attention that a kernel is part of; None for other kernels and unknown ones."""
    return _first(_BY_KERNEL, name)


def of_operation(name: str) -> str | None:
    """The implementation of attention that an operation calls; None for other operations."""
    return _first(_BY_OPERATION, name)


def _first(patterns: tuple[tuple[str, str], ...], name: str) -> str | None:
    return next((one for one, pattern in patterns if re.search(pattern, name)), None)
