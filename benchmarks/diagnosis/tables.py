"""What was judged, as tables for people and one JSON line a figure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean, median

from benchmarks.diagnosis.judge import FALSE_PCT, Control, Judged, Score
from benchmarks.figures import show
from benchmarks.model_errors import of_answers


def show_felt(cases: Sequence[Judged]) -> None:
    """Print what each fault costs, measured, without what was said of it."""
    rows = []
    for one in cases:
        truth = one.truth
        taken = " and ".join(f"{share:.0f}" for share in truth.taken_pct)
        costs = (*_ms(truth.step_us, truth.saving_us), _share(one), _noise(one), *_ms(truth.free_saving_us), taken)
        rows.append([one.name, _rank(one), f"{truth.planted.strength:g}", *costs])
    print(
        "What each fault costs; CPU taken is the share of a step, without it and with it, in which other work had the"
    )
    print("CPUs, and free what the fault costs with that share left out of the steps:\n")
    table(("case", "rank", "strength", "step ms", "costs ms", "% of step", "noise ms", "free ms", "CPU taken %"), rows)


def show_all(cases: Sequence[Judged], controls: Sequence[Control]) -> None:
    """Print the confusion matrix, the cases, the controls, and the figures over all."""
    print("Planted, and the first finding of each recording:\n")
    table(("planted", "first finding", "recordings"), confusion(cases, controls))
    print("Each case; of how many recordings it holds:\n")
    head = (
        "case",
        "first",
        "or second best",
        "anywhere",
        "rank",
        "place",
        "costs ms",
        "noise ms",
        "said ms",
        "error %",
        "beyond noise %",
        "holds",
    )
    table(head, [_row(one) for one in cases])
    print("Without a fault, the largest finding of each recording that is a mistake, and what communication costs:\n")
    rows = [
        [
            one.name,
            one.largest_id,
            f"{one.largest_pct:.1f}",
            *(_or_nothing(us) for us in (one.said_us, one.measured_us)),
        ]
        for one in controls
    ]
    table(("job", "finding", "% of step", "communication said ms", "measured ms"), rows)
    for one in cases:
        for failure in one.failures:
            print(f"{one.name}: not diagnosed: {failure}\n")
    _figures(cases, controls)


def confusion(cases: Iterable[Judged], controls: Iterable[Control]) -> list[list[str]]:
    """Rows of what was planted, what was found first, and how often."""
    pairs = Counter((one.truth.case.planted, score.first) for one in cases for score in one.scores)
    pairs.update(("none", one.largest_id) for one in controls)
    return [[planted, first, str(n)] for (planted, first), n in sorted(pairs.items())]


def _row(one: Judged) -> list[str]:
    scores = one.scores
    said, error, beyond = one.predicted_us, one.error_pct, one.error_beyond_noise_pct
    return [
        one.name,
        _of([score.is_first for score in scores]),
        _of([score.is_first_or_second_best for score in scores]),
        _of([score.is_anywhere for score in scores]),
        _of([score.rank_right for score in scores]),
        _of([score.place_right for score in scores]),
        *_ms(one.truth.saving_us),
        _noise(one),
        "" if said is None else f"{said / 1e3:.1f}",
        "" if error is None else f"{error:+.0f}",
        "" if beyond is None else f"{beyond:.0f}",
        _of([score.holds_beyond_noise for score in scores]),
    ]


def _of(flags: Sequence[bool | None]) -> str:
    counted = [flag for flag in flags if flag is not None]
    return f"{sum(counted)} of {len(counted)}" if counted else ""


def _rank(one: Judged) -> str:
    rank = one.truth.slow_rank
    return "" if rank is None else str(rank)


def _or_nothing(value_us: float | None) -> str:
    return "" if value_us is None else f"{value_us / 1e3:.1f}"


def _ms(*values_us: float) -> list[str]:
    return [f"{value / 1e3:.1f}" for value in values_us]


def _share(one: Judged) -> str:
    return f"{100 * one.truth.saving_us / one.truth.step_us:.0f}"


def _noise(one: Judged) -> str:
    noise = one.truth.noise_us
    return "" if noise is None else f"{noise / 1e3:.1f}"


def _figures(cases: Sequence[Judged], controls: Sequence[Control]) -> None:
    for one in cases:
        _case_figures(one)
    scores = [score for one in cases for score in one.scores]
    counted = {"cases": len(cases), "recordings": len(scores)}
    for name, flags in flags_of(scores).items():
        if flags:
            show(f"diagnosis_{name}", 100 * mean(flags), "%", counted | {"of": len(flags)})
    errors = [abs(error) for one in cases if (error := one.error_pct) is not None]
    if errors:
        show("diagnosis_saving_error_median", median(errors), "%", {"cases": len(errors)})
        show("diagnosis_saving_error_mean", mean(errors), "%", {"cases": len(errors)})
    beyond = [error for one in cases if (error := one.error_beyond_noise_pct) is not None]
    if beyond:
        show("diagnosis_saving_error_beyond_noise_median", median(beyond), "%", {"cases": len(beyond)})
    gained = [one.gained for case in cases for one in case.carried_out()]
    if gained:
        show("diagnosis_least_gained", 100 * min(gained), "% of the predicted saving", {"causes": len(gained)})
    show("diagnosis_unfelt", sum(not one.truth.is_felt for one in cases), "cases", {"cases": len(cases)})
    for named, shares in model_errors(cases).items():
        of_named = {"id": named, "recordings": len(shares)}
        show("diagnosis_model_error", of_answers(shares), "share of a step", of_named)
    if controls:
        false = sum(one.largest_pct > FALSE_PCT for one in controls)
        of = {"recordings": len(controls), "above_pct": FALSE_PCT}
        show("diagnosis_false_findings", false, "recordings", of)
        largest = max(controls, key=lambda one: one.largest_pct)
        named = {"job": largest.name, "id": largest.largest_id}
        show("diagnosis_largest_without_fault", largest.largest_pct, "% of step", named)
    failed = sum(len(one.failures) for one in cases)
    show("diagnosis_failures", failed, "recordings", counted)


def model_errors(cases: Iterable[Judged]) -> dict[str, list[float]]:
    """Id of a finding -> by how much of a step its price is off, for each recording in which it names what was planted."""
    off: dict[str, list[float]] = defaultdict(list)
    for one in cases:
        for score in one.scores:
            if score.named and score.predicted_us is not None:
                off[score.named].append(abs(score.predicted_us - one.truth.saving_us) / one.truth.step_us)
    return dict(sorted(off.items()))


def _case_figures(one: Judged) -> None:
    truth = one.truth
    counts = {name: _of(flags) for name, flags in flags_of(one.scores).items() if flags}
    context = {
        "case": one.name,
        "rank": truth.slow_rank,
        "strength": truth.planted.strength,
        "seed": truth.case.seed,
        "first": [score.first for score in one.scores],
        "measured_us": round(truth.saving_us),
        "predicted_us": None if one.predicted_us is None else round(one.predicted_us),
        "noise_us": None if truth.noise_us is None else round(truth.noise_us),
        "measured_free_us": round(truth.free_saving_us),
        "taken_pct": [round(share, 1) for share in truth.taken_pct],
    }
    if one.error_pct is not None:
        show("diagnosis_saving_error", one.error_pct, "%", context | counts)
    else:
        show("diagnosis_cause_unpriced", len(one.scores), "recordings", context | counts)


def flags_of(scores: Sequence[Score]) -> dict[str, list[bool]]:
    """What is counted over recordings; those to which a question does not apply are left out of its list."""
    flags: dict[str, list[bool | None]] = {
        "cause_first": [score.is_first for score in scores],
        "cause_first_but_for_what_is_true_anyway": [score.is_first_new for score in scores],
        "cause_rank_and_place_first": [score.is_first_whole for score in scores],
        "innocent_first": [score.is_innocent_first for score in scores],
        "cause_or_second_best_first": [score.is_first_or_second_best for score in scores],
        "cause_anywhere": [score.is_anywhere for score in scores],
        "rank_right": [score.rank_right for score in scores],
        "place_right": [score.place_right for score in scores],
        "interval_holds": [score.holds for score in scores],
        "interval_holds_beyond_noise": [score.holds_beyond_noise for score in scores],
    }
    return {name: [flag for flag in some if flag is not None] for name, some in flags.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their head, as Markdown."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()
