"""esprof: profile distributed PyTorch training, explain its step time, and make it faster.

``record`` writes a Run of a job. A Run is converted into one dataflow graph (Dfg) of all ranks; replay computes its times,
as recorded and with changes. Analyzers derive Findings with estimated savings, and reports show them.

No large library is imported here: the recorder runs inside training processes, and ``esprof --help`` must be instant.
The names below load their module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esprof.version import __version__

if TYPE_CHECKING:
    from esprof.analyzers.diagnosis import diagnose
    from esprof.api import Analysis, analyze
    from esprof.elastic.plans.plain import apply_plan
    from esprof.recorder.api import environment, labels, record, stage, step
    from esprof.recorder.model_travel import ModelTravel
    from esprof.run.load import load
    from esprof.run.run import Run

__all__ = [
    "Analysis",
    "ModelTravel",
    "Run",
    "__version__",
    "analyze",
    "apply_plan",
    "diagnose",
    "environment",
    "labels",
    "load",
    "record",
    "stage",
    "step",
]

_HOME = {
    "Analysis": "esprof.api",
    "ModelTravel": "esprof.recorder.model_travel",
    "Run": "esprof.run.run",
    "analyze": "esprof.api",
    "apply_plan": "esprof.elastic.plans.plain",
    "diagnose": "esprof.analyzers.diagnosis",
    "environment": "esprof.recorder.api",
    "labels": "esprof.recorder.api",
    "load": "esprof.run.load",
    "record": "esprof.recorder.api",
    "stage": "esprof.recorder.api",
    "step": "esprof.recorder.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)  # `esprof.step` is called often.
        return found
    raise AttributeError(f"module 'esprof' has no attribute {name!r}")
