"""What `esprof diagnose` said of a recording, against what was planted and measured."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from click.testing import CliRunner

from benchmarks.diagnosis.carrying_out import Measured, Planted, Recorded
from benchmarks.diagnosis.cases import Case, Job
from benchmarks.diagnosis.places import names_location
from benchmarks.model_errors import CarriedOut
from esprof.cli import root
from esprof.replay.whatif.grammar import parse

Finding = Mapping[str, Any]
"""One of `esprof diagnose --json`."""

COMMUNICATION = "ESP301"

FALSE_PCT = 5.0
"""Share of a step above which a finding on a job without a fault is counted as false."""

NOTHING = "nothing"
"""In place of an id where nothing was found."""


@dataclass(frozen=True)
class Truth:
    """What was planted, and what it costs, us: the mean plain step with the fault less that without it, or where there are
    pairs of runs the median of their differences."""

    case: Case
    planted: Planted
    saving_us: float
    step_us: float
    """With the fault."""
    noise_us: float | None
    """How far recordings of one setting lie apart, or of pairs, half as far as their differences do; None where there is
    one of each."""
    free_saving_us: float
    """The saving of steps less the time in which ranks had no CPU: less disturbed by other work on the machine."""
    taken_pct: tuple[float, float]
    """Share of the step in which other work of the machine had the job's CPUs, without the fault and with it."""

    @property
    def slow_rank(self) -> int | None:
        """The rank to blame; None where there is none, or no one rank."""
        return self.planted.rank if self.case.fault and self.case.fault.one_rank else None

    @property
    def is_felt(self) -> bool:
        """Whether the fault costs more than the noise of what was measured."""
        return self.saving_us > (self.noise_us or 0)


@dataclass(frozen=True)
class Score:
    """One recording: what holds of its findings. Fields are None where the fault has no such thing."""

    first: str
    """Id of the first finding."""
    is_first: bool
    is_first_new: bool
    """Whether it is the first of those that are no truth of the job without a fault, too."""
    is_first_whole: bool
    """Whether the first finding names the cause, and with it the rank and the place that are to be named."""
    is_innocent_first: bool
    """Whether the first finding names neither the cause, nor what leads to it, nor what is true of the job anyway."""
    is_first_or_second_best: bool
    is_anywhere: bool
    rank_right: bool | None
    place_right: bool | None
    named: str | None
    """Id of the finding of the cause; None where no finding names it."""
    scenario: str | None
    """What-if that gives that finding's price; None if it was measured or is a bound."""
    predicted_us: float | None
    """What that finding says a step gains."""
    holds: bool | None
    """Whether its interval holds the saving measured."""
    holds_beyond_noise: bool | None
    """Whether its interval comes as near to that as the noise of what was measured."""


@dataclass(frozen=True)
class Judged:
    """A case: its truth, and a score for each of its recordings that could be diagnosed."""

    truth: Truth
    scores: Sequence[Score]
    failures: Sequence[str]
    """What `esprof diagnose` said where it failed."""

    @property
    def name(self) -> str:
        return self.truth.case.name

    @property
    def predicted_us(self) -> float | None:
        """The mean over recordings; None where the cause was never named with a price."""
        said = [score.predicted_us for score in self.scores if score.predicted_us is not None]
        return mean(said) if said else None

    @property
    def error_pct(self) -> float | None:
        """Of the prediction, per cent of the saving measured; None, too, where the fault was not felt."""
        if self.predicted_us is None or self.truth.saving_us <= 0:
            return None
        return 100 * (self.predicted_us / self.truth.saving_us - 1)

    def carried_out(self) -> Iterator[CarriedOut]:
        """What the prices of causes, by one term, said of a step without the fault, for jobs on CPUs, us.

        What leads to the cause has a price of its own. What was measured counts as what was said as far as its noise allows;
        without noise nothing is known.
        """
        noise_us = self.truth.noise_us
        if noise_us is None or not self.truth.is_felt:
            return
        for score in self.scores:
            terms = parse(score.scenario) if score.scenario else ()
            if len(terms) == 1 and score.predicted_us and score.is_anywhere:
                step_us, measured_us = self.truth.step_us, self.truth.saving_us
                gained_us = min(max(score.predicted_us, measured_us - noise_us), measured_us + noise_us)
                name = terms[0].kind.name
                yield CarriedOut("cpu", name, step_us, step_us - score.predicted_us, step_us - gained_us)

    @property
    def error_beyond_noise_pct(self) -> float | None:
        """By how much the prediction is off beyond the noise, either way; None, too, where noise hides the fault."""
        if self.predicted_us is None or not self.truth.is_felt:
            return None
        off_us = abs(self.predicted_us - self.truth.saving_us) - (self.truth.noise_us or 0)
        return 100 * max(0.0, off_us) / self.truth.saving_us


@dataclass(frozen=True)
class Control:
    """A recording without a fault: its findings with a price, per cent of the step, by id."""

    name: str
    largest_id: str
    largest_pct: float
    """Of the findings that are a mistake: of exposed communication, what is said beyond what it was measured to cost."""
    said_us: float | None = None
    """What it is said that a step gains without communication; None where nothing is said of it."""
    measured_us: float | None = None
    """What a step took less with the ranks apart; None where that was not recorded."""


def truths(recorded: Iterable[Recorded]) -> Iterator[tuple[Truth, Recorded]]:
    """Each recorded fault with its truth. Faults without pairs, of jobs whose control was not recorded, are passed over.

    A seed is of no consequence to a control: those of all seeds tell what a job takes without a fault.
    """
    all_recorded = list(recorded)
    without: dict[Job, list[Measured]] = defaultdict(list)
    for one in all_recorded:
        if one.case.is_control:
            without[_job(one)] += one.measured
    for one in all_recorded:
        if one.case.fault is None:
            continue
        if one.pairs:
            yield _of_pairs(one), one
            continue
        off = without.get(_job(one))
        if off is None:
            continue
        both = off, one.measured
        before, after = ([recording.step_us for recording in some] for some in both)
        several = [some for some in (before, after) if len(some) > 1]
        noise = max((max(some) - min(some) for some in several), default=None)
        taken = [mean(recording.taken_pct for recording in some) for some in both]
        free = [mean(recording.free_us for recording in some) for some in both]
        step_us = mean(after)
        saving_us = step_us - mean(before)
        yield Truth(one.case, one.planted, saving_us, step_us, noise, free[1] - free[0], (taken[0], taken[1])), one


def _of_pairs(one: Recorded) -> Truth:
    without, having = zip(*one.measured_pairs, strict=True)
    costs = [after.step_us - before.step_us for before, after in one.measured_pairs]
    free = [after.free_us - before.free_us for before, after in one.measured_pairs]
    return Truth(
        one.case,
        one.planted,
        saving_us=median(costs),
        step_us=median(measured.step_us for measured in having),
        noise_us=(max(costs) - min(costs)) / 2 if len(costs) > 1 else None,
        free_saving_us=median(free),
        taken_pct=(mean(measured.taken_pct for measured in without), mean(measured.taken_pct for measured in having)),
    )


def _job(recorded: Recorded) -> Job:
    return recorded.case.job


def diagnosed(run: Path) -> list[Finding] | str:
    """The findings of a run, or why there are none."""
    # In this process: a new one would load all that compiled code again for each run.
    done = CliRunner().invoke(root, ["diagnose", str(run), "--json"])
    if done.exit_code:
        return str(done.exception)
    findings: list[Finding] = json.loads(done.stdout)["findings"]
    return findings


def judged(truth: Truth, runs: Sequence[Path]) -> Judged:
    said = [diagnosed(run) for run in runs]
    scores = [score(truth, findings) for findings in said if not isinstance(findings, str)]
    return Judged(truth, scores, [one for one in said if isinstance(one, str)])


def score(truth: Truth, findings: Sequence[Finding]) -> Score:
    """Hold the findings of one recording against the truth.

    Rank, place and price are those of the first finding that names the cause, or, where none does, of the second best.
    """
    fault = truth.case.fault
    assert fault is not None
    accepted, wide = fault.accepted, (*fault.accepted, *fault.second_best)
    known = truth.case.job.true_without_fault
    ids = [one["id"] for one in findings] or [NOTHING]
    first = ids[0]
    new = next((one for one in ids if one.startswith(accepted) or not one.startswith(known)), NOTHING)
    named = next(
        (one for some in (accepted, fault.second_best) for one in findings if one["id"].startswith(some)), None
    )
    rank_right, place_right = _rank_right(truth, named), _place_right(truth, named)
    price = _price(named)
    noise_us = truth.noise_us or 0
    return Score(
        first=first,
        is_first=first.startswith(accepted),
        is_first_new=new.startswith(accepted),
        is_first_whole=first.startswith(accepted) and rank_right is not False and place_right is not False,
        is_innocent_first=first != NOTHING and not first.startswith((*wide, *known)),
        is_first_or_second_best=first.startswith(wide),
        is_anywhere=any(one.startswith(accepted) for one in ids),
        rank_right=rank_right,
        place_right=place_right,
        named=named["id"] if named else None,
        scenario=named.get("what_if") if named and not named.get("is_bound") else None,
        predicted_us=price[0] if price else None,
        holds=price[1] <= truth.saving_us <= price[2] if price else None,
        holds_beyond_noise=price[1] - noise_us <= truth.saving_us <= price[2] + noise_us if price else None,
    )


def _rank_right(truth: Truth, named: Finding | None) -> bool | None:
    """Whether the rank at fault is named, and no other; None where there is none."""
    rank = truth.slow_rank
    return None if rank is None else named is not None and list(named["ranks"]) == [rank]


def _place_right(truth: Truth, named: Finding | None) -> bool | None:
    """Whether a line of the fault is named; None where it has none."""
    file, lines = truth.planted.file, truth.planted.lines
    return named is not None and names_location(named, file, lines) if lines else None


def _price(finding: Finding | None) -> tuple[float, float, float] | None:
    """Saving with its interval, us; None where the finding has none."""
    if finding is None or finding.get("saving_us") is None:
        return None
    saving = finding["saving_us"]
    low, high = finding.get("saving_low_us"), finding.get("saving_high_us")
    return saving, saving if low is None else low, saving if high is None else high


def communication_us(case: Case, recorded: Iterable[Recorded]) -> float | None:
    """What a step of the job takes less where its ranks train apart, us; None where that was not recorded."""
    of_job = [one for one in recorded if _job(one) == case.job and one.case.fault is None]
    together, apart = (
        [found.step_us for one in of_job if one.case.apart is is_apart for found in one.measured]
        for is_apart in (False, True)
    )
    return mean(together) - mean(apart) if together and apart else None


def control(job: Job, findings: Sequence[Finding], measured_us: float | None = None) -> Control:
    """The finding with the largest share of a step, of those that would be a mistake; `measured_us` is what communication
    costs."""
    said = next((one for one in findings if one["id"] == COMMUNICATION and one.get("saving_pct")), None)
    false = [one for one in findings if not one["id"].startswith(job.true_without_fault)]
    if said and measured_us is not None:
        # Of communication only what is said beyond its cost is a mistake.
        beyond = max(0.0, 1 - measured_us / said["saving_us"]) * said["saving_pct"]
        false = [{**one, "saving_pct": beyond} if one["id"] == COMMUNICATION else one for one in false]
    priced = [(one["saving_pct"], one["id"]) for one in false if one.get("saving_pct") is not None]
    share, largest = max(priced, default=(0.0, NOTHING))
    return Control(job.name, largest, share, said["saving_us"] if said else None, measured_us)
