"""Remedies for slow input data, for training scripts."""

from esprof.data.minio_cache import MinIOCache

__all__ = ["MinIOCache"]
