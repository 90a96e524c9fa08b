"""Findings, breakdowns and comparisons: pure functions over a Run, its Dfg and its Timeline.

`findings/` has one file for each rule, `advisors/` proposes changes, `comparison/` compares two runs, `gate/` is the check
for CI, `ops/` the table of operations, `summary/` the report, `tracks/` exports, `verified/` compares predictions with
measurements; `steps/`, `samples/` and `views/` prepare the data for them. The names below load their module on first use,
so that one can be imported alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esprof.analyzers.advisors.recommend import recommend, recommend_all
    from esprof.analyzers.comparison.compare import compare
    from esprof.analyzers.diagnosis import diagnose
    from esprof.analyzers.summary.summary import summarize

__all__ = ["compare", "diagnose", "recommend", "recommend_all", "summarize"]

_HOME = {
    "compare": "esprof.analyzers.comparison.compare",
    "diagnose": "esprof.analyzers.diagnosis",
    "recommend": "esprof.analyzers.advisors.recommend",
    "recommend_all": "esprof.analyzers.advisors.recommend",
    "summarize": "esprof.analyzers.summary.summary",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module 'esprof.analyzers' has no attribute {name!r}")
