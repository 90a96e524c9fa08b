"""The table of operations: time in the steady-state steps by name, on every rank.

The names below load their module on first use, so that the command line can name `Sort` without the analyzers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esprof.analyzers.ops.answer import Op, OpsAnswer
    from esprof.analyzers.ops.over_ranks import Asked, check_rank, ops, ops_run
    from esprof.analyzers.ops.sort import Sort

__all__ = ["Asked", "Op", "OpsAnswer", "Sort", "check_rank", "ops", "ops_run"]

_HOME = {
    "Asked": "esprof.analyzers.ops.over_ranks",
    "Op": "esprof.analyzers.ops.answer",
    "OpsAnswer": "esprof.analyzers.ops.answer",
    "Sort": "esprof.analyzers.ops.sort",
    "check_rank": "esprof.analyzers.ops.over_ranks",
    "ops": "esprof.analyzers.ops.over_ranks",
    "ops_run": "esprof.analyzers.ops.over_ranks",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module 'esprof.analyzers.ops' has no attribute {name!r}")
