"""The elastic runtime: N logical workers (EasyScaleThreads, ESTs) on any processes, with bits that do not depend on which.

Names load their module on first use, so that what needs no torch (`esprof elastic diff`) runs without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esprof.elastic.assignment import Assignment
    from esprof.elastic.reduce.codecs import Codec, register_codec
    from esprof.elastic.trainer import ElasticTrainer, StepResult

__all__ = ["Assignment", "Codec", "ElasticTrainer", "StepResult", "register_codec"]

_HOME = {
    "Assignment": "esprof.elastic.assignment",
    "Codec": "esprof.elastic.reduce.codecs",
    "register_codec": "esprof.elastic.reduce.codecs",
    "ElasticTrainer": "esprof.elastic.trainer",
    "StepResult": "esprof.elastic.trainer",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'esprof.elastic' has no attribute {name!r}")
