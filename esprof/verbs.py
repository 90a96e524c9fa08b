"""The verbs of the command line: what each is called, where its module is, and how one is started as a process of its own.

This is the one place that tells: no other module of esprof names the module of a verb or writes `python -m esprof`. It
imports nothing of esprof, so that every layer may start a verb.
"""

import sys

VERBS = {
    "demo": "Train two workers with a planted fault; record, diagnose, report.",
    "record": "Run a training command and record it on every rank.",
    "replay": "Replay a run's step time, and ask what would change it.",
    "diagnose": "Name what the step time is lost to, and what it would gain.",
    "ops": "Show operators and modules by their own and total time.",
    "explain": "Explain a finding: what it means and what to do.",
    "report": "Write one self-contained HTML page about a run.",
    "check": "Compare a run with a baseline; the gate for CI.",
    "probe": "Measure what a job's devices, links, codecs and storage can do.",
    "recommend": "Recommend where ESTs run, or which devices jobs get, with proof.",
    "apply": "Hand a plan to a running elastic job, and tell what comes of it.",
    "tune": "Run an elastic job, and make its steps shorter while it runs.",
    "serve": "Serve a page of running elastic jobs, their plans and advice.",
    "verify": "Make a change for real and compare it with what was promised.",
    "merge": "Join the runs of one job, recorded host by host, into one.",
    "elastic": "Start elastic jobs, scale them, and compare what they did.",
}
"""Verb -> its one-line summary, in the order of `esprof --help`. A test keeps the summaries equal to the commands' own."""


def module_of(verb: str) -> str:
    """The full name of the module that holds the verb's `command`."""
    return f"esprof.reports.commands.{verb}"


def command_line(verb: str, *words: str) -> list[str]:
    """The words that run `esprof verb words…` as a process of its own, with the Python of this one."""
    assert verb in VERBS
    return module_line("esprof", verb, *words)


def module_line(module: str, *words: str, python: str = sys.executable) -> list[str]:
    """The words that run a module of esprof as a process of its own."""
    return [python, "-m", module, *words]
