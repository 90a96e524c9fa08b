"""The global dataflow graph of a run, its replay, and what-if questions."""

from esprof.replay.answering import answer_run, replay_run
from esprof.replay.build import build
from esprof.replay.timeline import replay
from esprof.replay.whatif import what_if

__all__ = ["answer_run", "build", "replay", "replay_run", "what_if"]
