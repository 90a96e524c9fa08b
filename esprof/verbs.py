"""The verbs of the command line: names, summaries and modules, and the commands that start them.

This module imports nothing of esprof, so that every layer can start a verb. No other one spells these names.
"""

import sys
from pathlib import Path

_START = Path(__file__).with_name("start.py")

GROUPS = {
    "Record": {
        "record": "Run a training command and record all its ranks.",
        "again": "Run the command of a run again, record it, and compare.",
        "demo": "Record and diagnose a small training job with a planted fault.",
        "probe": "Benchmark a job's devices, links and storage.",
        "merge": "Merge the runs that each host of a job recorded.",
    },
    "Understand": {
        "diagnose": "List what slows a run's steps, and what each fix would save.",
        "report": "Write a self-contained HTML report of a run.",
        "explain": "Explain a finding: what it means and how to fix it.",
        "replay": "Replay a run's steps and predict what a change would save.",
        "ops": "List operators and modules by own and total time.",
        "export": "Write a run for Perfetto and other tools, or to share it.",
    },
    "Fix": {
        "recommend": "Recommend what to change in a job, or which devices jobs get.",
        "verify": "Apply a change to a job and compare it with the prediction.",
        "jobs": "Summarise a cluster's job log: waits, GPU time, gang sizes.",
    },
    "Guard": {
        "compare": "Compare two runs: by how much a step differs, and where.",
        "check": "Compare a run with a baseline and fail on a regression.",
    },
    "Elastic jobs": {
        "elastic": "Start and scale elastic jobs, and compare their results.",
        "tune": "Run an elastic job and tune it while it runs.",
        "apply": "Send a plan to a running elastic job.",
        "serve": "Serve a web page that shows and steers elastic jobs.",
    },
    "Set up": {
        "doctor": "Examine this installation, and what a cluster must allow.",
        "validate": "Tell whether a run is whole, and what is declined on it.",
        "completion": "Print a script that completes esprof's words in a shell.",
    },
}
"""Verbs in groups, in the order of `esprof --help`, with the one-line summary that the help of each command repeats."""

VERBS = {verb: summary for group in GROUPS.values() for verb, summary in group.items()}
"""One-line summary of each verb."""

COMPLETION = "_ESPROF_COMPLETE"
"""Environment variable with which a shell asks for completions."""


def module_of(verb: str) -> str:
    """Return the full name of the module that defines the verb's `command`."""
    return f"esprof.reports.commands.{verb}"


def command_line(verb: str, *words: str) -> list[str]:
    """Return the command that runs `esprof verb words…` with the current Python."""
    assert verb in VERBS
    return module_line("esprof", verb, *words)


def module_line(module: str, *words: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of esprof and imports nothing from the current folder."""
    return [python, "-P", str(_START), module, *words]


def foreign_module_line(module: str) -> list[str]:
    """Return the command that runs a module of another package and imports nothing from the current folder."""
    return [sys.executable, "-P", "-m", module]
