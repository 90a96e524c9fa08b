"""Remedies for slow input data, and a check of loaders that resume, for training scripts."""

from esprof.data.hosts.job_hosts import JobHosts
from esprof.data.minio_cache import MinIOCache
from esprof.data.partitioned_cache import PartitionCounts, PartitionedCache
from esprof.data.resume import check_resume
from esprof.data.shared_preparation import SharedOrder, SharedPreparation

__all__ = [
    "JobHosts",
    "MinIOCache",
    "PartitionCounts",
    "PartitionedCache",
    "SharedOrder",
    "SharedPreparation",
    "check_resume",
]
