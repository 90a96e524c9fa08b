"""Compressed gradients for DistributedDataParallel: a communication hook with a codec per bucket.

from esprof.elastic.compress import compress

compression = compress(ddp, "int8")            # one codec for all buckets, or
compression = compress(ddp, plan.parts.compression.body)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esprof.elastic.compress.hook import Compression, compress

__all__ = ["Compression", "compress"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("esprof.elastic.compress.hook"), name)
    raise AttributeError(f"module 'esprof.elastic.compress' has no attribute {name!r}")
