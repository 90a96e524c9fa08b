"""`sparsity[REGEX]=2:4`: weights of which two of each four neighbours are zero."""

from esprof.replay.whatif.products.sparse import with_sparse_weights
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, regex, word


def _sparse(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        now = with_sparse_weights(now, term.argument)  # type: ignore[arg-type]  # Read by `regex`.
    return now


TERM = Kind(
    name="sparsity",
    examples=("sparsity[REGEX]=2:4",),
    meaning="Of each four neighbours in the weights of linear layers, two are zero, as tensor cores compute it. REGEX finds "
    "the names of modules, as in `esprof ops --by module`. Their products with weights take the measured time of products "
    "with 2:4 weights, relative to dense ones of the same sizes; each forward pass also chooses the zeros and packs the "
    "weights, as training does. Gradients of weights take as long as before. Weights that were not measured stay dense and "
    "are listed.",
    needs="A run of `esprof record --shapes` on GPUs of compute capability 8.0 or later, with a probe (`--probe`) that "
    "measured the products.",
    assumes="Kernels of 16 bits. A product in the backward pass whose sizes are those of a weight is one with that weight.",
    effect=Edit(TermPhase.REBUILD, _sparse),
    value=word("2:4"),
    argument=regex,
)
