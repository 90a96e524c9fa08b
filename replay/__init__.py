"""The global dataflow graph of a run, its replay, and what-if questions.

`build`, `replay` and `what_if` work on graphs. `Replayed` is a run with its graph and replay, from which `answer`
and `esprof.analyzers` start.
"""

from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.replayed import Replayed, answer
from esprof.replay.whatif.pricing import what_if

__all__ = ["Replayed", "answer", "build", "replay", "what_if"]
