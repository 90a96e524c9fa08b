"""The result of `esprof elastic diff` for a terminal."""

from esprof.core.text import printable
from esprof.elastic.verify.diff import ElasticDiff, StepDifference, TensorDifference
from esprof.reports import units


def render_diff(found: ElasticDiff) -> str:
    """The result as plain text, verdict first. No line begins with a name from the logs."""
    of_a, of_b = proof_text(found.proven_a, found.diverged_a), proof_text(found.proven_b, found.diverged_b)
    logs = [f"A: {printable(found.a)}: {of_a}", f"B: {printable(found.b)}: {of_b}"]
    return "\n".join([_verdict(found), *_details(found), *logs])


def proof_text(proven: int | None, diverged: int | None) -> str:
    """Up to which step bits are proven, and the step in which they had diverged."""
    known = "nothing proven" if proven is None else f"bits proven up to step {proven}"
    return known if diverged is None else f"{known}, diverged at step {diverged}"


def _verdict(found: ElasticDiff) -> str:
    if found.mismatch is not None:
        field, a, b = map(printable, (found.mismatch.field, found.mismatch.a, found.mismatch.b))
        return f"not comparable: {field} is {a} in A and {b} in B"
    if found.difference is not None:
        return f"differ: first at step {found.difference.step}, epoch {found.difference.epoch}"
    return f"equal: bit for bit at all {found.steps_equal} common steps, up to step {found.last_equal}"


def _details(found: ElasticDiff) -> list[str]:
    lines = []
    if found.outcome != "equal" and found.steps_equal:
        lines.append(f"  equal before: {units.plural(found.steps_equal, 'step')} up to step {found.last_equal}")
    if found.outcome == "equal":
        more = {"A": found.only_a, "B": found.only_b}
        lines += [f"  {name} has {units.plural(count, 'more step')}" for name, count in more.items() if count]
    return lines + (_step(found.difference) if found.difference is not None else [])


def _step(difference: StepDifference) -> list[str]:
    lines = [
        f"  loss of EST {loss.est}: {loss.a!r} in A, {loss.b!r} in B: the forward passes differ"
        for loss in difference.losses
    ]
    if not difference.losses:
        lines.append("  losses: equal; the gradients, their sum or the update differ")
    if difference.tensor is not None:
        lines.append(f"  tensors: {difference.tensors_differing} of {difference.tensors} differ; the first:")
        lines.append(f"    {_tensor(difference.tensor)}")
    lines += [f"  ESTs of A: {_ests(difference.assignment_a)}", f"  ESTs of B: {_ests(difference.assignment_b)}"]
    return lines


def _tensor(tensor: TensorDifference) -> str:
    name = f"{printable(tensor.name)} ({printable(tensor.dtype)}, {units.plural(tensor.elements, 'element')})"
    apart = tensor.distance
    if apart is None:
        return f"{name}: distance unknown: {printable(tensor.reason or '')}"
    ulp = f", by at most {apart.max_ulp} ULP" if apart.max_ulp is not None else ""
    nan = f"; {apart.nan} of them NaN in either" if apart.nan else ""
    return f"{name}: {apart.differing} differ{ulp}{nan}"


def _ests(assignment: tuple[tuple[int, ...], ...]) -> str:
    return " | ".join(" ".join(map(str, ests)) or "none" for ests in assignment)
