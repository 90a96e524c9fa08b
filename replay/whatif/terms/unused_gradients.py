"""`unused_gradients=0`: no backward pass computes gradients that no optimizer uses."""

import numpy as np

from esprof.replay.whatif.gradients.marked_calls import (
    backward_ranges,
    calls_with_unused_gradients,
    calls_with_unused_weights,
    marked_share,
)
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

SHARE_OF_WEIGHTS = 0.5
"""Share of the backward pass of a module with parameters that computes their gradients: that of its inputs takes as many
operations in linear and convolutional layers."""


def _without_gradients(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    whole = marked_share(now, calls_with_unused_gradients, backward_ranges)
    weights = marked_share(now, calls_with_unused_weights, backward_ranges)
    share = np.maximum(whole, SHARE_OF_WEIGHTS * weights)
    return without_share(now, terms, share, "no backward pass was recorded whose gradients no optimizer uses")


TERM = Kind(
    name="unused_gradients",
    examples=("unused_gradients=0", "rank3.unused_gradients=0"),
    meaning="Calls of models whose gradients no optimizer uses have no backward pass, unless their inputs need a gradient. "
    "Modules between others that learn have half of theirs: it computes the gradient of their inputs.",
    needs="A window of `esprof record` with such calls.",
    assumes="The job uses these gradients for nothing else.",
    effect=Edit(TermPhase.REMOVE, _without_gradients),
    value=zero,
    scoped=True,
)
