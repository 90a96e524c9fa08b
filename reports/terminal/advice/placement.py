"""Recommendations of assignments, batches and devices, for a terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.advisors.job.batches import BatchAdvice
from esprof.analyzers.advisors.job.est_answer import EstAdvice, RankPlan
from esprof.analyzers.advisors.job.growth import Growth
from esprof.core import readable
from esprof.core.readable import decimal
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline

if TYPE_CHECKING:  # A page has text of this module, and needs no SciPy.
    from esprof.analyzers.advisors.cluster.answer import Given, MixAdvice
    from esprof.analyzers.advisors.cluster.policies import Objective

_MAX_ROWS = 40
"""Rows of a table; the JSON has all."""

_OBJECTIVE_TEXTS: dict["Objective", str] = {
    "throughput": "{} steps/s in total",
    "fairness": "every job gets at least {} of its normal throughput",
    "finish-time": "the worst job takes {} times as long as on its own n-th of the devices",
    "makespan": "all jobs end within {} s",
    "cost": "all jobs end for a cost of {}",
}


def draw_mix(advice: "MixAdvice", screen: Screen = PLAIN) -> str:
    """The devices of each job, then the proof."""
    title = _OBJECTIVE_TEXTS[advice.objective].format(decimal(advice.value))
    blocks: list[RenderableType] = [headline(f"{title[0].upper()}{title[1:]}", screen), Text(), _jobs(advice)]
    if len(advice.mix.jobs) > _MAX_ROWS:
        blocks.append(Text(f"and {len(advice.mix.jobs) - _MAX_ROWS:,} more jobs (--json)"))
    return drawn(screen, *blocks, Text(), *_mix_facts(advice, screen))


def _jobs(advice: "MixAdvice") -> Table:
    rows = grid("job", "workload", ">devices at once", ">steps/s", "gets", padding=2)
    by_job: dict[str, list[Given]] = {}
    for one in advice.decision:
        by_job.setdefault(one.job, []).append(one)
        if one.with_ is not None:
            by_job.setdefault(one.with_, []).append(one)
    for job in advice.mix.jobs[:_MAX_ROWS]:
        rows.add_row(
            printable(job.name, 24),
            printable(job.workload, 32),
            str(job.scale_factor),
            decimal(advice.throughput_steps_per_s[job.name]),
            _gets(by_job.get(job.name, [])),
        )
    return rows


def _gets(given: Sequence["Given"]) -> str:
    amounts: dict[str, float] = {}
    for one in given:
        where = printable(one.device, 24) + (" shared" if one.with_ is not None else "")
        amounts[where] = amounts.get(where, 0.0) + ((one.share if one.hours is None else one.hours) or 0.0)
    unit = "{} h" if given and given[0].hours is not None else "{}"
    texts = {
        where: unit.format(decimal(amount)) if unit != "{}" else units.pct(100 * amount)
        for where, amount in amounts.items()
    }
    return ", ".join(f"{where} {amount}" for where, amount in texts.items()) or "nothing"


def _mix_facts(advice: "MixAdvice", screen: Screen) -> Iterable[Text]:
    for name, value in advice.baselines.items():
        yield fact("Other", f"{_OBJECTIVE_TEXTS[advice.objective].format(decimal(value))} ({name})", screen)
    proof = advice.certificate
    how = "by dual values" if proof.kind == "duals" else "by search"
    yield fact("Proof", f"no decision is better than {decimal(proof.bound)}: {how}, gap {proof.gap:.1g}", screen)
    for kind, worth in advice.binding.items():
        yield fact(
            "Scarce", f"one more {printable(kind, 24)} changes the objective by {worth:+.4g} (linear estimate)", screen
        )
    for one in advice.frontier:
        yield fact("Faster", f"within {decimal(one.hours)} h for {decimal(one.money)}", screen)
    for kind, price in advice.break_even.items():
        when = f"below {decimal(price)} an hour" if price > 0 else "at no price"
        yield fact("Price", f"{printable(kind, 24)} would be used {when}", screen)
    for warning in dict.fromkeys(advice.warnings):
        yield fact("Note", printable(warning), screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen)


def draw_ests(advice: EstAdvice, screen: Screen = PLAIN) -> str:
    """The ESTs of each rank, then the evidence."""
    blocks: list[RenderableType] = [headline(summary(advice), screen), Text(), _ranks(advice.decision.ranks)]
    if len(advice.decision.ranks) > _MAX_ROWS:
        blocks.append(Text(f"and {len(advice.decision.ranks) - _MAX_ROWS:,} more ranks (--json)"))
    if advice.growth is not None:
        blocks += [Text(), heading("With other devices, compute time only"), _growth(advice.growth)]
    return drawn(screen, *blocks, Text(), *_est_facts(advice, screen))


def draw_batches(advice: BatchAdvice, screen: Screen = PLAIN) -> str:
    """The batch size of each rank, then the evidence."""
    now, then = (units.duration(value) for value in (advice.baselines["now"], advice.value))
    if advice.is_worth_it:
        headed = f"With unequal batches a step would take {then} instead of {now}: {units.pct(advice.gain_pct)} less"
    else:
        headed = f"No change recommended: a step takes {now}, and with the best batches {then}"
    rows = grid("rank", "device", ">compute now", ">samples now", ">proposed", ">loss weight", padding=2)
    for rank in advice.decision[:_MAX_ROWS]:
        counts = (str(rank.samples_now), str(rank.samples), f"{rank.weight:.4g}")
        rows.add_row(str(rank.rank), printable(rank.device or units.UNKNOWN, 24), units.duration(rank.busy_us), *counts)
    interval = units.interval(advice.low_us, advice.high_us)
    error = units.pct(advice.error_pct)
    facts = [fact("Range", f"{interval}; prediction error {error} of a step", screen)]
    facts += [fact("Note", warning, screen) for warning in advice.warnings]
    facts.append(fact("Omits", "; ".join(advice.not_modelled), screen))
    return drawn(screen, headline(headed, screen), Text(), rows, Text(), *facts)


def _growth(growth: Growth) -> Table:
    rows = grid("devices", ">compute of the slowest", ">gain", ">gain per device", padding=2)
    for one in growth.proposals:
        rows.add_row(
            f"{one.devices} more {printable(one.kind, 24)}",
            units.duration(one.compute_us),
            units.pct(one.gain_pct),
            units.pct(one.gain_each_pct),
        )
    rows.add_row(f"the best: {_list(growth.devices)}", units.duration(growth.compute_us), "", "")
    rows.add_row(f"the fewest within {growth.within_pct:g} %: {_list(growth.fewest)}", "", "", "")
    for count in growth.good_counts:
        rows.add_row(f"{count.n_est} ESTs (another training)", f"{units.pct(count.waste_pct)} idle", "", "")
    return rows


def _list(devices: dict[str, int]) -> str:
    return ", ".join(f"{count} {printable(kind, 24)}" for kind, count in devices.items())


def summary(advice: EstAdvice) -> str:
    """The advice in one sentence."""
    now, then = (units.duration(value) for value in (advice.baselines["now"], advice.value))
    if advice.plan is None:
        return f"No change recommended: a step takes {now}, and with the best assignment found {then}"
    return f"A step would take {then} instead of {now}: {units.pct(advice.gain_pct)} less"


def _ranks(ranks: Sequence[RankPlan]) -> Table:
    rows = grid(
        "rank", "device", ">EST step", ">last EST", ">update", "now", "proposed", ">busy now", ">proposed", padding=2
    )
    for rank in ranks[:_MAX_ROWS]:
        rows.add_row(
            str(rank.rank),
            printable(rank.device or units.UNKNOWN, 24),
            units.duration(rank.est_us) + ("" if rank.est_from == "measured" else "*"),
            units.duration(rank.last_us),
            units.duration(rank.update_us),
            ests_text(rank.now),
            ests_text(rank.advised),
            units.duration(rank.now_us),
            units.duration(rank.advised_us),
        )
    return rows


def ests_text(ests: Sequence[int]) -> str:
    """Number and ids: `3 (0–2)`."""
    return f"{len(ests)} ({readable.runs(ests)})" if ests else "none"


def _est_facts(advice: EstAdvice, screen: Screen) -> Iterable[Text]:
    interval = units.interval(advice.low_us, advice.high_us)
    yield fact("Range", f"{interval}; prediction error {units.pct(advice.error_pct)} of a step", screen)
    yield fact("Other", f"an even split: {units.duration(advice.baselines['even split'])}", screen)
    proof = advice.certificate
    text = (
        f"in less than {units.duration(proof.compute_us)} all ranks together complete only {proof.ests_below} of "
        f"{proof.n_est} ESTs"
    )
    if proof.advised_compute_us > proof.compute_us * 1.001:
        text += f"; replay, which includes communication, prefers {units.duration(proof.advised_compute_us)}"
    yield fact("Proof", text, screen)
    yield fact("Waste", f"{units.pct(advice.waste_pct)} of the devices' capacity is idle", screen)
    for warning in advice.warnings:
        yield fact("Note", warning, screen)
    part = advice.plan.parts.assignment if advice.plan is not None else None
    if part is not None and not part.changes_bits:
        yield fact("Bits", "unchanged: the training does not depend on the assignment of ESTs", screen)
