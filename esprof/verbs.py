"""The verbs of the command line: names, summaries and modules, and the commands that start them.

This module imports nothing of esprof, so that every layer can start a verb. No other one spells these names.
"""

import sys

VERBS = {
    "demo": "Record and diagnose a small training job with a planted fault.",
    "record": "Run a training command and record all its ranks.",
    "replay": "Replay a run's steps and predict what a change would save.",
    "diagnose": "List what slows a run's steps, and what each fix would save.",
    "ops": "List operators and modules by own and total time.",
    "explain": "Explain a finding: what it means and how to fix it.",
    "report": "Write a self-contained HTML report of a run.",
    "check": "Compare a run with a baseline and fail on a regression.",
    "probe": "Benchmark a job's devices, links and storage.",
    "recommend": "Recommend what to change in a job, or which devices jobs get.",
    "apply": "Send a plan to a running elastic job.",
    "tune": "Run an elastic job and tune it while it runs.",
    "serve": "Serve a web page that shows and steers elastic jobs.",
    "verify": "Apply a change to a job and compare it with the prediction.",
    "merge": "Merge the runs that each host of a job recorded.",
    "elastic": "Start and scale elastic jobs, and compare their results.",
}
"""One-line summary of each verb, in the order of `esprof --help`. The help of each command repeats its summary."""


def module_of(verb: str) -> str:
    """Return the full name of the module that defines the verb's `command`."""
    return f"esprof.reports.commands.{verb}"


def command_line(verb: str, *words: str) -> list[str]:
    """Return the command that runs `esprof verb words…` with the current Python."""
    assert verb in VERBS
    return module_line("esprof", verb, *words)


def module_line(module: str, *words: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of esprof."""
    return [python, "-m", module, *words]
