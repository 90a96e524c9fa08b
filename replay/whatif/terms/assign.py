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
    paths = {term.value for term in terms}
    if len(paths) > 1:
        raise Declined("ESTs cannot be assigned in two ways at once")
    turns = EstLoad.of(now.run, now.dfg, now.steps)
    assumed = [rank for rank, cost in turns.costs.items() if not cost.is_measured]
    (path,) = paths
    part = read_plan(Path(path)).parts.assignment
    if part is None:
        raise Declined(f"the plan {path} assigns no ESTs")
    assignment = Assignment(part.body.ests)
    moved = turns.moved(assignment)
    if any(len(assignment.ests[turns.dfg.marks.ranks.index(rank)]) > 1 for rank in assumed):
        now = now.noted("of a rank that ran one EST, what a second one takes is assumed from the other ranks")
    return replace(now, dfg=moved)


TERM = Kind(
    name="assign",
    examples=("assign=plan.json",),
    meaning="The ESTs of an elastic job placed as this plan says (`esprof recommend`): each rank takes its own measured "
    "time for each EST, and transfers carry what the new ranges need.",
    needs="A run that the elastic runtime wrote (`ElasticTrainer(telemetry=RUN)`), in whose steady steps every rank ran an "
    "EST, and none moved.",
    effect=Edit(TermPhase.REBUILD, _assigned),
    value=text,
)
