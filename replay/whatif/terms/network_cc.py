"""`network.cc=bbr`: another TCP congestion control."""

import re

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.whatif.communication.congestion import times_as_fast
from esprof.replay.whatif.communication.links import between_cpus
from esprof.replay.whatif.graph.selections import not_recorded, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,14}")


def _value(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a name of a TCP congestion control", remedy="Write one such as bbr or cubic."
        )
    return text


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    nodes = np.zeros(scenario.dfg.nodes, bool)
    nodes[between_cpus(scenario.dfg)] = True
    return required(nodes, not_recorded(scenario.dfg, "collective between CPUs of known size"))


def _factor(scenario: Scenario, term: Term) -> np.ndarray:
    return times_as_fast(scenario, term.value)


TERM = Kind(
    name="network.cc",
    examples=("network.cc=bbr",),
    meaning="The hosts use another TCP congestion control. Each collective between CPUs takes the measured mean time at its "
    "size with this control, relative to that with the present one.",
    needs="A run over gloo with a probe that measured both controls (`record --probe`). The probe measures those that the "
    "kernels of all hosts have loaded and allow.",
    assumes="Collectives of the job lose as many packets as those of the probe, which has the link for itself. "
    "All connections of the job change.",
    effect=Speed(Resource.WORK, _nodes, _factor),
    value=_value,
)
