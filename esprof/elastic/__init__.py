"""The elastic runtime: N logical workers (EasyScaleThreads, ESTs) on any number of processes, always with the same
bits.

Names import their module on first use, so that `esprof elastic diff` runs without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esprof.core.assignment import Assignment
    from esprof.elastic.compress.codecs.codec import Codec
    from esprof.elastic.compress.codecs.registry import register_codec
    from esprof.elastic.data.loaders import Loaders
    from esprof.elastic.leaving.drain import Drained
    from esprof.elastic.leaving.termination import outlive_sigterm
    from esprof.elastic.options import Checkpoint, Data, Drain, Gradients, Placement, Proof, Tuning, Updates
    from esprof.elastic.plans.store import PlanKey
    from esprof.elastic.rates.search import LearningRateSearch
    from esprof.elastic.runtime.result import StepResult
    from esprof.elastic.trainer import ElasticTrainer

__all__ = [
    "Assignment",
    "Checkpoint",
    "Codec",
    "Data",
    "Drain",
    "Drained",
    "ElasticTrainer",
    "Gradients",
    "LearningRateSearch",
    "Loaders",
    "Placement",
    "PlanKey",
    "Proof",
    "StepResult",
    "Tuning",
    "Updates",
    "outlive_sigterm",
    "register_codec",
]

_HOME = {
    "Assignment": "esprof.core.assignment",
    "Checkpoint": "esprof.elastic.options",
    "Codec": "esprof.elastic.compress.codecs.codec",
    "Data": "esprof.elastic.options",
    "Drain": "esprof.elastic.options",
    "Drained": "esprof.elastic.leaving.drain",
    "ElasticTrainer": "esprof.elastic.trainer",
    "Gradients": "esprof.elastic.options",
    "LearningRateSearch": "esprof.elastic.rates.search",
    "Loaders": "esprof.elastic.data.loaders",
    "Placement": "esprof.elastic.options",
    "PlanKey": "esprof.elastic.plans.store",
    "Proof": "esprof.elastic.options",
    "StepResult": "esprof.elastic.runtime.result",
    "Tuning": "esprof.elastic.options",
    "Updates": "esprof.elastic.options",
    "outlive_sigterm": "esprof.elastic.leaving.termination",
    "register_codec": "esprof.elastic.compress.codecs.registry",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'esprof.elastic' has no attribute {name!r}")
