"""`esprof recommend --check`: is the decision in a file as good as it states?"""

from pathlib import Path

import click
import msgspec

from esprof.analyzers.advisors.cluster.answer import MixAdvice, check
from esprof.analyzers.advisors.cluster.questions.ask import is_question, verify
from esprof.analyzers.advisors.job.ests import check_plan
from esprof.analyzers.advisors.parallel.advise import ParallelAdvice, check_parallel
from esprof.analyzers.advisors.parallel.mixed.advise import MixedAdvice, check_mixed
from esprof.core.disk import read_given
from esprof.core.errors import EXIT_OK, InputError
from esprof.core.plan import SCHEMA as PLAN_SCHEMA
from esprof.core.plan import Plan, read_plan
from esprof.core.types import NOT_DECODED

_PARALLEL = "esprof.parallel/1"
_MIXED = "esprof.mixed-parallel/1"


class _Schema(msgspec.Struct, frozen=True):
    """The schema field of a file, and the objective of advice on several jobs."""

    schema: str
    objective: str | None = None


def check_file(path: Path) -> int:
    """Verify a file that `recommend` wrote. Raises MismatchError if its proof does not hold."""
    raw = read_given(path, "a result")
    try:
        found = msgspec.json.decode(raw, type=_Schema)
        if found.schema == PLAN_SCHEMA:
            _check_plan(read_plan(path), path)
            return EXIT_OK
        if found.schema == _PARALLEL:
            check_parallel(msgspec.json.decode(raw, type=ParallelAdvice))
            click.echo(f"{path}: verified; searched and replayed again, the plans are the same")
            return EXIT_OK
        if found.schema == _MIXED:
            check_mixed(msgspec.json.decode(raw, type=MixedAdvice))
            click.echo(f"{path}: verified; searched and replayed again, the plans and predictions are the same")
            return EXIT_OK
        if is_question(found.objective):
            shown = verify(raw, found.objective)
            click.echo(f"{path}: verified {shown.how}; no decision is better by more than {shown.gap:.1g} (relative)")
            return EXIT_OK
        proof = check(msgspec.json.decode(raw, type=MixAdvice))
    except NOT_DECODED as error:
        raise InputError(f"is neither a plan nor a result of recommend: {error}", path=path) from error
    click.echo(f"{path}: verified; no decision is better by more than {proof.gap:.1g} (relative)")
    return EXIT_OK


def _check_plan(plan: Plan, path: Path) -> None:
    """Verify the assignment of a plan, and say how to verify its other parts."""
    others = {
        part: how
        for part, how in (
            ("compression", f"esprof replay RUN --what-if compress={path}"),
            ("loader", "esprof recommend RUN --only loader"),
            ("checkpoint", "esprof recommend RUN --only checkpoint"),
        )
        if getattr(plan.parts, part) is not None
    }
    if plan.parts.assignment is None:
        raise InputError(
            f"has no assignment, and its {' and '.join(others)} cannot be verified without the run",
            path=path,
            remedy=f"Predict again: {'; '.join(others.values())}.",
        )
    check_plan(plan)
    click.echo(f"{path}: verified; in any shorter time, the ranks together complete too few ESTs")
    for part, how in others.items():
        click.echo(f"{path}: {part} not verified: it needs the run ({how})", err=True)
