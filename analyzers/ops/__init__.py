"""The table of operations: time in the steady-state steps by name, on every rank."""

from esprof.analyzers.ops.answer import Op, OpsAnswer, Sort
from esprof.analyzers.ops.over_ranks import Asked, check_rank, ops, ops_run

__all__ = ["Asked", "Op", "OpsAnswer", "Sort", "check_rank", "ops", "ops_run"]
