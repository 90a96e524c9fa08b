"""What was judged, as tables for people and one JSON line a figure."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from benchmarks.known.judge import FELT, Blame, Judged, Verdict
from benchmarks.model_errors import of_answers, term_of
from esprof.replay.whatif.error.model_errors import JobClass

Key = TypeVar("Key", bound=Hashable)
One = TypeVar("One")
_ANSWERS = ("what-if", "n", "median", "mean", "p95", "worst", "of seed", "refused", "holds %", "holds gain %")
_ANSWERS += ("no change: mean", "no change: p95")


def report(judged: Sequence[Judged]) -> None:
    """Print the tables, then the figures."""
    read = [one for one in judged if one.said]
    verdicts = [verdict for one in read for verdict in one.verdicts]
    blames = [one.blame for one in read if one.blame]
    _failures(judged)
    _replays(read)
    print(
        "Answers: error of the step time, %; the intervals that hold the truth, of the step time and of the gain; and the "
        "error of the answer that nothing changes:\n"
    )
    by_class = _by(verdicts, lambda one: (one.shape, one.scenario))
    _table(("class", *_ANSWERS), [[*key, *_errors(by_class[key])] for key in sorted(by_class)])
    by_term = _by(verdicts, lambda one: one.scenario) | {"all": verdicts}
    _table(_ANSWERS, [[term, *_errors(some)] for term, some in by_term.items()])
    by_shape = _by(verdicts, lambda one: one.shape)
    _table(("class", *_ANSWERS[1:]), [[shape, *_errors(by_shape[shape])] for shape in sorted(by_shape)])
    by_trait = _by_trait(verdicts)
    _table(("trait", *_ANSWERS[1:]), [[trait, *_errors(by_trait[trait])] for trait in sorted(by_trait)])
    reasons = Counter(
        (one.scenario, re.sub(r"\d[\d.,]*", "N", one.reason)) for one in verdicts if one.predicted is None
    )
    print("Refusals:\n")
    _table(("n", "what-if", "reason"), [[str(n), *key] for key, n in reasons.most_common()])
    _blames(blames)
    _figure("known_failures", len(judged) - len(read), "programs", of=len(judged))
    for (shape, term), some in sorted(by_class.items()):
        _figures(some, shape=shape, what_if=term)
    for term, some in by_term.items():
        _figures(some, what_if=term)
    _blame_figures(blames)
    above = [one for one in read if one.said and sum(one.said.savings_us) > 1.001 * one.said.together_us + 1]
    _figure("known_savings_above_joint", len(above), "programs", of=len(read))
    for (job, kind), shares in model_errors(verdicts).items():
        context = {"job": job, "term": kind, "answers": len(shares)}
        _figure("known_model_error", of_answers(shares), "share of a step", **context)


def _by_trait(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = defaultdict(list)
    for one in verdicts:
        for trait in one.traits:
            found[trait].append(one)
    return found


def _failures(judged: Sequence[Judged]) -> None:
    failed = [one for one in judged if one.failure]
    print(f"{len(judged)} programs, {len(failed)} failed.\n")
    for one in failed:
        print(f"FAILED --class {one.shape} --seed {one.seed}: {one.failure}")


def _replays(read: Sequence[Judged]) -> None:
    print("\nReplay of what was recorded, error of the worst step; without residuals; of the measured step time, %:\n")
    rows = []
    for shape, some in _by(read, lambda one: one.shape).items():
        said = [one.said for one in some if one.said]
        columns = ([one.self_error_pct for one in said], [one.strict_error_pct for one in said])
        measured = [abs(one.step_error_pct) for one in some]
        rows.append([shape, str(len(some)), *(text for values in (*columns, measured) for text in _spread(values)[1:])])
    _table(("class", "n", "self p95", "self worst", "strict p95", "strict worst", "step p95", "step worst"), rows)


def _errors(some: Sequence[Verdict]) -> list[str]:
    answered = [one for one in some if one.predicted is not None]
    refused = str(len(some) - len(answered))
    if not answered:
        return ["0", "", "", "", "", "", refused, "", "", "", ""]
    worst = max(answered, key=lambda one: abs(one.error_pct))
    held = [_share(one.holds for one in answered), _share(one.holds_gain for one in answered)]
    errors = [abs(one.error_pct) for one in answered]
    (median, p95, _), mean = _spread(errors), f"{np.mean(errors):.2f}"
    no_change = [100 * abs(one.before / one.truth - 1) for one in answered if one.truth]
    unchanged = [f"{np.mean(no_change):.2f}", _spread(no_change)[1]]
    return [
        str(len(answered)),
        median,
        mean,
        p95,
        f"{worst.error_pct:+.2f}",
        str(worst.seed),
        refused,
        *held,
        *unchanged,
    ]


def _blames(blames: Sequence[Blame]) -> None:
    print(
        f"Planted stragglers (those that cost {FELT:.0%} of a step or more, and the rest), and whom diagnose names:\n"
    )
    planted = [one for one in blames if one.planted is not None]
    rows = []
    for (kind, is_felt), some in sorted(_by(planted, lambda one: (one.kind, one.felt >= FELT)).items()):
        rows.append([kind, "yes" if is_felt else "no", str(len(some)), *_named(some)])
    columns = ("cause", "felt", "n", "named first %", "named %", "an innocent named %", "first finding %")
    _table((*columns, "first of the largest %"), rows)
    rows = [
        [
            "work uneven by turns" if uneven else "nothing planted",
            str(len(some)),
            _share(bool(one.named) for one in some),
        ]
        for uneven, some in _by([one for one in blames if one.planted is None], lambda one: one.is_uneven).items()
    ]
    _table(("without", "n", "someone named %"), rows)
    for one in blames:
        wrong = [rank for rank in one.named if rank != one.planted]
        if wrong or (one.planted is not None and one.felt >= FELT and one.position != 0):
            print(
                f"--class {one.shape} --seed {one.seed}: planted {one.planted} ({one.kind or 'nothing'}, "
                f"{one.felt:.0%} of a step, input data of all ranks {one.others:.0%}), named {list(one.named)}, "
                f"position {one.position}"
            )
    print()


def _named(some: Sequence[Blame]) -> list[str]:
    return [
        _share(one.named[:1] == (one.planted,) for one in some),
        _share(one.planted in one.named for one in some),
        _share(any(rank != one.planted for rank in one.named) for one in some),
        _share(one.position == 0 for one in some),
        _share(one.position == 0 for one in some if one.is_largest),
    ]


def _figures(some: Sequence[Verdict], **context: object) -> None:
    answered = [one for one in some if one.predicted is not None]
    context |= {"answers": len(answered), "refused": len(some) - len(answered)}
    if answered:
        errors = np.abs([one.error_pct for one in answered])
        context |= {"p95": round(float(np.quantile(errors, 0.95)), 3), "worst": round(float(errors.max()), 3)}
        context |= {"holds": round(float(np.mean([one.holds for one in answered])), 3)}
        context |= {"holds_gain": round(float(np.mean([one.holds_gain for one in answered])), 3)}
        context |= {"gain_error": round(float(np.median([abs(one.gain_error_pct) for one in answered])), 3)}
        _figure("known_what_if_error", float(np.median(errors)), "%", **context)


def _blame_figures(blames: Sequence[Blame]) -> None:
    felt = [one for one in blames if one.planted is not None and one.felt >= FELT]
    without = [one for one in blames if one.planted is None]
    if felt:
        first = float(np.mean([one.named[:1] == (one.planted,) for one in felt]))
        innocent = float(np.mean([any(rank != one.planted for rank in one.named) for one in felt]))
        _figure("known_straggler_named_first", 100 * first, "%", programs=len(felt), innocent_named=100 * innocent)
        _figure("known_first_finding", sum(one.position == 0 for one in felt), "programs", of=len(felt))
        largest = [one for one in felt if one.is_largest]
        _figure("known_first_of_largest", sum(one.position == 0 for one in largest), "programs", of=len(largest))
    if without:
        _figure(
            "known_false_alarms", 100 * float(np.mean([bool(one.named) for one in without])), "%", programs=len(without)
        )


def model_errors(verdicts: Iterable[Verdict]) -> dict[tuple[JobClass, str], list[float]]:
    """What gains of single terms were off by, shares of a step, by class of job and kind of term."""
    single = [one for one in verdicts if one.predicted is not None and "," not in re.sub(r"\[.*]", "", one.scenario)]
    grouped = _by(single, lambda one: (one.job, term_of(one.scenario)))
    return {key: [one.model_error for one in some] for key, some in sorted(grouped.items())}


def _by(some: Iterable[One], key: Callable[[One], Key]) -> dict[Key, list[One]]:
    found: dict[Key, list[One]] = defaultdict(list)
    for one in some:
        found[key(one)].append(one)
    return dict(found)


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    return f"{np.median(values):.2f}", f"{np.quantile(values, 0.95):.2f}", f"{max(values):.2f}"


def _share(held: Iterable[bool]) -> str:
    counted = list(held)
    return f"{100 * float(np.mean(counted)):.0f}" if counted else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        print("none\n")
        return
    widths = [max(len(column), *(len(row[at]) for row in rows)) for at, column in enumerate(columns)]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def _figure(name: str, value: float, unit: str, **context: object) -> None:
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "context": context}, default=float))
