"""`assign=plan.json`: ESTs on other ranks."""

from dataclasses import replace
from pathlib import Path

from esprof.core.assignment import Assignment
from esprof.core.plan import read_plan
from esprof.replay.whatif.graph.est_load import EstLoad
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, text


def _assigned(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """Raises InputError where there is no plan in a file."""
    path = terms[0].value
    est_load = EstLoad.of(now.run, now.dfg, now.steps)
    assumed = [rank for rank, cost in est_load.costs.items() if not cost.is_measured]
    section = read_plan(Path(path)).parts.assignment
    if section is None:
        raise Declined(f"the plan {path} assigns no ESTs")
    assignment = Assignment(section.body.ests)
    moved = est_load.moved(assignment)
    if any(len(assignment.ests[est_load.dfg.marks.ranks.index(rank)]) > 1 for rank in assumed):
        now = now.noted("the cost of a second EST on ranks that ran one is estimated from the other ranks")
    return replace(now, dfg=moved)


TERM = Kind(
    name="assign",
    examples=("assign=plan.json",),
    meaning="The ESTs (logical workers) of an elastic job run on the ranks that a plan assigns (`esprof recommend`). "
    "Each rank takes the time that it took for an EST in this run. Collectives carry the bytes of the new assignment.",
    needs="A run recorded by the elastic runtime (`ElasticTrainer(telemetry=RUN)`). Every rank ran an EST in the "
    "steady-state steps, and no EST moved.",
    assumes="On a rank that ran one EST, further ESTs cost what they cost on the other ranks, relative to the first.",
    effect=Edit(TermPhase.REBUILD, _assigned),
    value=text,
)
