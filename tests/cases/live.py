"""Run directories of elastic jobs as `esprof serve` finds them, and its application over them."""

import msgspec

from esprof.core.plan import PlanStatus, write_plan
from esprof.reports.live.gate import Gate
from esprof.reports.live.hub import Hub
from esprof.reports.live.proposal import LatestSearch, Proposal, RankProposal, write_search
from esprof.reports.live.server import Site
from esprof.run.logs import HISTORY, JobEvent, LiveStep, Setting
from tests.cases.plans import plan_of

EVEN, UNEVEN = ((0, 1), (2, 3)), ((0, 1, 2), (3,))


def live_step(step, took_us=40_000.0, ests=(2, 2), busy_us=(10_000.0, 40_000.0), **more):
    return LiveStep(step=step, took_us=took_us, busy_us=busy_us, ests=ests, **more)


def write_steps(run, steps):
    with (run / "live.jsonl").open("ab") as file:
        for step in steps:
            file.write(msgspec.json.encode(step) + b"\n")


def proposal_of(ests=UNEVEN, now=EVEN, **plan):
    """A proposal of a plan with this assignment."""
    ranks = tuple(
        RankProposal(rank=rank, device="cpu", now=now[rank], advised=ests[rank], now_us=1e4, advised_us=2e4)
        for rank in range(len(ests))
    )
    return Proposal(
        value=25_000.0,
        low_us=22_000.0,
        high_us=28_000.0,
        gain_pct=37.5,
        error_pct=4.0,
        baselines={"now": 40_000.0, "even split": 40_000.0},
        ranks=ranks,
        warnings=(),
        plan=plan_of(ests, **plan),
    )


def running(run, steps=60):
    """The Run directory of a job that has a proposal and no plan yet."""
    run.mkdir(parents=True, exist_ok=True)
    HISTORY.append(run, JobEvent(what="started", step=0, reason="4 ESTs on 2 processes"))
    write_steps(run, [live_step(step) for step in range(steps)])
    write_search(run, LatestSearch(proposal=proposal_of()))
    return run


def adopted(run, plan=None, state="adopted", was=EVEN, codec=None, step=60):
    """The same job has adopted a plan since."""
    plan = plan or plan_of(UNEVEN)
    write_plan(run / "plan.json", plan)
    setting = Setting(ests=was, codec=codec)
    HISTORY.append(
        run, JobEvent(what=state, step=step, plan=plan.id, version=plan.version, was=setting, before_us=40_000.0)
    )
    status = PlanStatus(state=state, plan=plan.id, version=plan.version, step=step)
    (run / "plan.status.json").write_bytes(msgspec.json.encode(status))
    write_steps(run, [live_step(step + at, 25_000.0, (3, 1), version=plan.version) for at in range(20)])
    return plan


def site(*runs, host="127.0.0.1", token=None):
    """(application, hub, gate) that serve these Runs."""
    gate = Gate(host, token)
    hub = Hub([(run.name, run) for run in runs], gate.page_token)
    return Site(hub, gate).app(), hub, gate
