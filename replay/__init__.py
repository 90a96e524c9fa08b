"""The global dataflow graph of a run, its replay, and what-if questions."""

from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.replayed import answer_run, replay_run
from esprof.replay.whatif.pricing import what_if

__all__ = ["answer_run", "build", "replay", "replay_run", "what_if"]
