"""Training scripts, half of them with something in it that ordinary data parallelism does not mind, and equal bits do."""

from tests.cases.programs import data, hooks, losses, models, randomness, ranks, reached, updates
from tests.cases.programs.script import PROGRAMS, Program, Script

__all__ = [
    "PROGRAMS",
    "Program",
    "Script",
    "data",
    "hooks",
    "losses",
    "models",
    "randomness",
    "ranks",
    "reached",
    "updates",
]
