"""`esprof recommend`."""

import math
from pathlib import Path
from typing import Literal, cast, get_args

import click
import msgspec

from esprof.analyzers import recommend, recommend_all
from esprof.analyzers.advisors.cluster.answer import MixAdvice, advise
from esprof.analyzers.advisors.cluster.gavel import with_throughputs
from esprof.analyzers.advisors.cluster.mix import read, read_mix
from esprof.analyzers.advisors.cluster.money import Recovery, interrupted
from esprof.analyzers.advisors.cluster.policies import Objective, Prices
from esprof.analyzers.advisors.cluster.questions.answer import ClusterAnswer, Question
from esprof.analyzers.advisors.cluster.questions.ask import QUESTIONS, ask, is_question
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE
from esprof.analyzers.advisors.compression.instance import solve
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.analyzers.advisors.recommend import Kind, Recommendations, Wanted
from esprof.analyzers.steps.saves import MAX_OVERHEAD_PCT
from esprof.core.errors import EXIT_OK, InputError, UsageError
from esprof.core.output import claim, write_bytes
from esprof.core.plan import Plan, write_plan
from esprof.core.save_cost import Failures
from esprof.core.types import NS_PER_S
from esprof.reports.commands.common import answer, columns_option, json_option, open_run, status, write_advice, wrote
from esprof.reports.commands.parallel import SplitOptions, split_options
from esprof.reports.commands.proofs import check_file
from esprof.reports.commands.searched import Search, search_options
from esprof.reports.terminal.advice.cluster import draw_cluster
from esprof.reports.terminal.advice.compression import draw_instance
from esprof.reports.terminal.advice.placement import draw_mix
from esprof.reports.terminal.advice.recommendations import draw_advice, draw_recommendations
from esprof.reports.terminal.advice.search import draw_search

_S_PER_HOUR = 3_600
_PAGE = ".html"
"""Suffix of a file that gets the page of a plan."""

Only = Kind | Literal["parallel"]
"""What `--only` may ask for: all but the last need a recording."""


class _DevicePrices(msgspec.Struct, frozen=True):
    """Price per hour by device type; for preemptible devices, interruptions per hour and the cost of recovery."""

    per_hour: Prices
    interruptions_per_hour: dict[str, float] = {}
    recovery: Recovery = Recovery()


@click.command("recommend")
@click.argument("sources", metavar="[RUN]…", nargs=-1)
@columns_option
@click.option("--jobs", type=Path, metavar="FILE", help="Several jobs with their measured throughputs (YAML or JSON).")
@click.option(
    "--inventory", type=Path, metavar="FILE", help="Available devices (YAML or JSON), such as `devices: {V100: 4}`."
)
@click.option(
    "--throughputs",
    type=Path,
    metavar="FILE",
    help="Throughputs in the format of the scheduler Gavel, for jobs in --jobs that give none.",
)
@click.option(
    "--prices",
    type=Path,
    metavar="FILE",
    help="Price of an hour of each device type, such as `per_hour: {V100: 2.48}`.",
)
@click.option(
    "--objective",
    type=click.Choice((*get_args(Objective), *QUESTIONS)),
    help="With --jobs: what to optimise. Default: fairness.",
)
@click.option(
    "--whole",
    is_flag=True,
    help=(
        "With --jobs: give each job a single type of device, or none. Otherwise a job may split its time "
        "between several types."
    ),
)
@click.option(
    "--only",
    type=click.Choice((*get_args(Kind), "parallel")),
    help="With RUN: recommend only this. `parallel` also takes files with times of layers, or sizes of a transformer.",
)
@split_options
@search_options
@click.option(
    "--max-vnmse",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Largest compression error: squared error over the squared norm of the gradient. Default: 0.01.",
)
@click.option(
    "--max-overhead",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Time that checkpoints may take. Default: 3.5.",
)
@click.option(
    "--mtbf",
    type=click.FloatRange(0, min_open=True),
    metavar="HOURS",
    help="Mean time between two failures of the job, for the interval of checkpoints that loses least time.",
)
@click.option(
    "--restart",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --mtbf: time from a failure to the first new step. Default: 0.",
)
@click.option(
    "--instance",
    type=Path,
    metavar="FILE",
    help="Solve a test problem published with the paper Espresso: tensor sizes and codec costs.",
)
@click.option(
    "--as-shipped",
    is_flag=True,
    help="With --instance: reproduce a rounding error of Espresso's published program.",
)
@click.option(
    "--check",
    "checked",
    type=Path,
    metavar="PLAN",
    help="Verify that a plan or result is optimal, by the proof stored in it.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan, or with --jobs the result, to FILE. With RUN, plan.html gets a page: before and after.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE if it exists.")
@json_option
def command(
    sources: tuple[str, ...],
    jobs: Path | None,
    inventory: Path | None,
    throughputs: Path | None,
    prices: Path | None,
    objective: Objective | Question | None,
    whole: bool,
    only: Only | None,
    split: SplitOptions,
    wider: Search,
    max_vnmse: float | None,
    instance: Path | None,
    as_shipped: bool,
    checked: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    **saving: float | None,
) -> int:
    """Recommend what to change in a job, or which devices jobs get.

    One job: RUN is its recording, its traces, or the directory of ElasticTrainer(telemetry=RUN). The result has what
    the run shows: which rank runs which logical workers of an elastic job (ESTs), or how many samples each rank of
    another job gets (assignment), which codec each gradient bucket gets (compression), how many workers load data
    (loader), and how often the job saves (checkpoint). Each gain is that of this change alone. -o writes the plan,
    which `esprof apply` sends to a running elastic job. Gains below twice the prediction's error are left out.

    --search finds the best set of changes together, those that pay only with others included, with a lower bound.
    --only parallel splits a model over the --inventory. RUN is recorded, or files with times of layers or sizes.

    Several jobs: --jobs gives their measured throughputs. The result is their share of the devices, with a proof that
    no other share is better. --objective sizes, proposals, reclaim or slices answers in whole devices, servers or
    slices of GPUs instead, and spot in hours on offers of a cloud.

    \b
    esprof recommend RUN -o plan.json
    esprof recommend RUN -o plan.html
    esprof recommend RUN --only checkpoint --mtbf 12
    esprof recommend RUN --search --try cache=0.5
    esprof recommend RUN --only parallel --inventory gpus.yaml --batch 64
    esprof recommend --jobs jobs.yaml --inventory gpus.yaml --objective makespan
    esprof recommend --check plan.json
    """
    _refuse_misplaced(sources, jobs, inventory, instance, checked, output, only, as_shipped=as_shipped)
    _refuse_without_run(sources, only, compression={"max_vnmse": max_vnmse}, checkpoint=saving)
    wider.refuse(excluded=any((not sources, only, inventory, *saving.values())))
    if output is not None:
        claim(output, force=force)
    if checked is not None or instance is not None:
        return _answer_file(checked, instance, as_shipped=as_shipped, as_json=as_json)
    devices = _devices(inventory) if inventory else None
    if jobs is not None:
        advice = _jobs_advice(jobs, devices, throughputs, prices, objective or "fairness", whole=whole)
        return _answer_jobs(advice, output, as_json=as_json)
    _refuse_for_one_job(only, split, of_several=any((objective, whole, prices, throughputs)))
    if only == "parallel":
        return split.answer(sources, inventory, output, as_json=as_json)
    wanted = _wanted(devices, max_vnmse, **saving)
    return _one(sources, "assignment" if inventory and only is None else only, wanted, wider, output, as_json=as_json)


def _refuse_misplaced(
    sources: tuple[str, ...],
    jobs: Path | None,
    inventory: Path | None,
    instance: Path | None,
    checked: Path | None,
    output: Path | None,
    only: Only | None,
    *,
    as_shipped: bool,
) -> None:
    """Raise UsageError if options exclude each other, or do not apply to the input."""
    if sum((len(sources) > 0, jobs is not None, instance is not None, checked is not None)) != 1:
        raise UsageError("exactly one of RUN, --jobs, --instance and --check is needed")
    if as_shipped and instance is None:
        raise UsageError("--as-shipped needs --instance")
    if output is not None and not sources and jobs is None:
        raise UsageError("-o needs RUN or --jobs")
    if output is not None and output.suffix == _PAGE and (not sources or only == "parallel"):
        raise UsageError(f"a page ({_PAGE}) is written only for RUN", remedy="Write the result to a .json file.")
    if inventory is not None and not sources and jobs is None:
        raise UsageError("--inventory needs RUN or --jobs")


def _refuse_without_run(sources: tuple[str, ...], only: Only | None, **of_kind: dict[str, float | None]) -> None:
    """Raise UsageError for options of advice on one job without a job, or with advice of another kind, and for NaN."""
    if only is not None and not sources:
        raise UsageError("--only needs RUN")
    for kind, options in of_kind.items():
        given = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
        if given and (not sources or only not in (None, kind)):
            raise UsageError(f"{next(iter(given))} needs RUN, and excludes --only with another value than {kind}")
        for name, value in given.items():
            if math.isnan(value):
                raise UsageError(f"{name} must be a number")
        if "--restart" in given and "--mtbf" not in given:
            raise UsageError("--restart needs --mtbf")


def _refuse_for_one_job(only: Only | None, split: SplitOptions, *, of_several: bool) -> None:
    """Raise UsageError for options that apply to several jobs, or to another kind of advice."""
    if of_several:
        raise UsageError("--objective, --whole, --prices and --throughputs need --jobs")
    split.refuse(is_asked=only == "parallel")


def _wanted(
    inventory: Inventory | None,
    max_vnmse: float | None,
    max_overhead: float | None,
    mtbf: float | None,
    restart: float | None,
) -> Wanted:
    """What advice has to keep to, from the options: per cent, hours and seconds."""
    cycle = None if mtbf is None else mtbf * _S_PER_HOUR * NS_PER_S
    return Wanted(
        inventory=inventory,
        max_vnmse=MAX_VNMSE if max_vnmse is None else max_vnmse,
        max_overhead_pct=MAX_OVERHEAD_PCT if max_overhead is None else max_overhead,
        failures=None if cycle is None else Failures(mtbf_ns=cycle, restart_ns=(restart or 0.0) * NS_PER_S),
    )


def _jobs_advice(
    jobs: Path,
    devices: Inventory | None,
    throughputs: Path | None,
    prices: Path | None,
    objective: Objective | Question,
    *,
    whole: bool,
) -> MixAdvice | ClusterAnswer:
    """Advice for several jobs, on `devices` or those that the file of jobs names."""
    if is_question(objective):
        if whole or throughputs or prices:
            raise UsageError(f"--objective {objective} excludes --whole, --throughputs and --prices")
        return ask(objective, jobs, devices)
    money = read(prices, _DevicePrices) if prices else None
    filled = (lambda listed: with_throughputs(listed, throughputs)) if throughputs else (lambda listed: listed)
    mix = read_mix(jobs, devices.counts if devices else None, filled)
    if money is not None:
        mix = interrupted(mix, money.interruptions_per_hour, money.recovery)
    return advise(mix, cast(Objective, objective), money.per_hour if money else None, one_type=whole)


def _answer_jobs(advice: MixAdvice | ClusterAnswer, output: Path | None, *, as_json: bool) -> int:
    write_advice(advice, output)
    if isinstance(advice, MixAdvice):
        answer(advice, draw_mix, as_json=as_json)
    else:
        answer(advice, draw_cluster, as_json=as_json)
    return EXIT_OK


def _devices(path: Path) -> Inventory:
    """Read an inventory. Raises InputError."""
    inventory = read(path, Inventory)
    if not inventory.devices or min(inventory.counts.values()) < 1:
        raise InputError("every type needs at least one device", path=path)
    return inventory


def _answer_file(checked: Path | None, instance: Path | None, *, as_shipped: bool, as_json: bool) -> int:
    """Verify a plan or result, or solve a test problem."""
    if checked is not None:
        return check_file(checked)
    assert instance is not None
    answer(solve(instance, as_shipped=as_shipped), draw_instance, as_json=as_json)
    return EXIT_OK


def _one(
    sources: tuple[str, ...], only: Kind | None, wanted: Wanted, wider: Search, output: Path | None, *, as_json: bool
) -> int:
    """Advice for one job."""
    run, _ = open_run(sources)
    if wider.is_asked:
        if output is not None and output.suffix == _PAGE:
            raise UsageError("--search writes a plan, and no page", remedy="Give -o a name that ends in .json.")
        with status("Searching"):
            together = wider.advise(run, wanted.max_vnmse)
        answer(together, draw_search, as_json=as_json)
        return _planned(together.plan, output)
    with status("Replaying"):
        found = recommend_all(run, wanted) if only is None else recommend(run, only, wanted)
    plan = getattr(found, "plan", None)
    if isinstance(found, Recommendations):
        answer(found, draw_recommendations, as_json=as_json)
    else:
        answer(found, draw_advice, as_json=as_json)
        found = Recommendations(advice={only or "assignment": found}, declined={}, plan=plan)
    if output is not None and output.suffix == _PAGE:
        from esprof.reports.html.page import render_plan

        write_bytes(output, render_plan(found, " ".join(sources)).encode())
        wrote("page", output)
        return EXIT_OK
    return _planned(plan, output)


def _planned(plan: Plan | None, output: Path | None) -> int:
    if output is None:
        return EXIT_OK
    if plan is None:
        click.echo("No plan was written: no change is recommended.", err=True)
        return EXIT_OK
    write_plan(output, plan)
    wrote("plan", output)
    return EXIT_OK
