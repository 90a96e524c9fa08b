"""The Report of a run: diagnosis, replay with the usual what-ifs, and the views of the page."""

from functools import partial

from esprof import __version__
from esprof.analyzers.advisors.recommend import Recommendations, recommend_all
from esprof.analyzers.diagnosis import diagnose_case
from esprof.analyzers.ignore import NOTHING, Ignores
from esprof.analyzers.large import case_of
from esprof.analyzers.ops.over_ranks import Asked, ops
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.samples.flame import flame
from esprof.analyzers.steps.step_times import step_times
from esprof.analyzers.summary.arrival_map import arrival_map
from esprof.analyzers.summary.drawn_ranks import drawn_ranks
from esprof.analyzers.summary.explorer import explorer
from esprof.analyzers.summary.job_proof import JobProof
from esprof.analyzers.summary.loader_workers import input_stages
from esprof.analyzers.summary.not_recorded import not_recorded
from esprof.analyzers.summary.report import Report
from esprof.analyzers.summary.timeline_excerpt import excerpt
from esprof.analyzers.views.memory_use import memory_use
from esprof.analyzers.views.probed import probed
from esprof.core.errors import EsprofError
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.replayed import Replayed, answer
from esprof.replay.skeleton.large import LargeReplay, answered
from esprof.run.run import Run

WHAT_IFS = ("gpu=2x", "cpu=2x", "network=2x", "data=0", "straggler=fix")
"""What-ifs of every report."""

MAX_OPERATIONS = 100
MAX_EVENTS = 100
MAX_RANKS_CHARTED = 32
"""Most ranks with a bar of their own in the breakdown."""


def summarize(of: Run | Replayed, ignores: Ignores = NOTHING, workers: RankWorkers = IN_THIS_PROCESS) -> Report:
    """Everything that a renderer shows about a run. A Run is built and replayed, a large one by `workers`; findings covered
    by `ignores` are listed separately. Raises InputError if the run has no graph.

    For a large run, the timeline shows the ranks that its diagnosis examines. It has no critical path there, no grids of
    what-ifs, and no advice: they need the graph of all ranks.
    """
    summed_up = partial(_summed_up, ignores=ignores)
    return summed_up(of) if isinstance(of, Replayed) else answered(of, summed_up, workers=workers)


def _summed_up(replayed: Replayed, ignores: Ignores) -> Report:
    run, job, is_large = replayed.run, RecordedJob(replayed.run), isinstance(replayed, LargeReplay)
    case = case_of(replayed, job)
    diagnosis, replay = diagnose_case(case, ignores), answer(replayed, WHAT_IFS)
    timeline = excerpt(case.replayed)
    operations = ops(replayed.steps, job.samples, Asked(top=MAX_OPERATIONS))
    return Report(
        title=str(run.path.name) if run.path else "run",
        source=str(run.path or ""),
        command=run.meta.command,
        esprof_version=__version__,
        versions=run.meta.versions,
        created_ns=run.meta.created_ns,
        ranks=run.meta.ranks,
        diagnosis=diagnosis,
        replay=replay,
        charted_ranks=drawn_ranks(replayed, MAX_RANKS_CHARTED),
        explorer=None if is_large else explorer(replayed),
        steps=step_times(job, diagnosis.findings),
        timeline=timeline,
        arrivals=arrival_map(replayed, timeline.ranks),
        operations=operations,
        input=input_stages(run),
        flame=flame(job.samples),
        memory=memory_use(run),
        probed=probed(run.probes) if run.probes is not None else None,
        advice=None if is_large else _advice(replayed, job),
        not_recorded=tuple(not_recorded(job, operations.shapes_recorded)),
        history=run.history[-MAX_EVENTS:],
        proof=JobProof.of_history(run.history),
        rounds=run.rounds[-MAX_EVENTS:],
    )


def _advice(replayed: Replayed, job: RecordedJob) -> Recommendations | None:
    try:
        return recommend_all(replayed, job=job)
    except EsprofError:  # Too little was recorded.
        return None
