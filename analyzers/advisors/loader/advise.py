"""Advise the workers and the prefetching of a job's DataLoader: a few settings are replayed by the what-if terms
`loader.workers` and `loader.prefetch`, and the smallest one that is as good as the best is advised."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec

from esprof.analyzers.advisors.job.est_answer import NotRecorded
from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.analyzers.advisors.loader.answer import NO_STALL, NOW, LoaderAdvice, LoaderChoice, name_of
from esprof.analyzers.advisors.step_advice import MIN_GAIN_IN_ERRORS
from esprof.core.errors import EsprofError
from esprof.core.plan import LoaderBody, Plan, PlanParts, PlanPromise
from esprof.core.types import us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.est_load import has_est_records
from esprof.replay.whatif.host.host_cpus import cpus_of
from esprof.replay.whatif.loading.batches import batches_of
from esprof.replay.whatif.pricing import Price
from esprof.replay.whatif.scenario import Declined

WORKERS, PREFETCH = "loader.workers", "loader.prefetch"
"""The what-if terms, whose errors are those of such predictions."""

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of workers that are tried."""
_DEEPER = (1, 2, 4)
"""Multiples of the present prefetch that are tried."""
_DEFAULT_PREFETCH = 2
"""`prefetch_factor` of torch."""
_RESEEDED = (
    "torch seeds each worker on its own, so that random augmentation, and with it the bits of training, change with their "
    "number"
)


@dataclass(frozen=True)
class JobLoaders:
    """The DataLoaders of a job, and what replay says of other settings."""

    replayed: Replayed
    now: LoaderBody
    differ: bool
    """Whether ranks have different settings."""
    cpus: float | None
    """CPUs of each rank; None if unknown."""

    @classmethod
    def of(cls, replayed: Replayed) -> "JobLoaders":
        """Raises NotRecorded if the run has no batches of DataLoaders, or too few."""
        run, steps = replayed.run, replayed.pricer.steps
        try:
            of_ranks = {rank: batches_of(run, rank, steps) for rank in run.ranks}
        except Declined as reason:
            raise NotRecorded(str(reason), path=run.path, remedy="Record more steps with `esprof record`.") from reason
        recorded = {rank: batches for rank, batches in of_ranks.items() if batches is not None}
        if not recorded:
            raise NotRecorded(
                "no DataLoader was recorded in these steps",
                path=run.path,
                remedy="Record the job with `esprof record`.",
            )
        settings = {(one.workers, one.prefetch if one.workers else None) for one in recorded.values()}
        workers, prefetch = max(settings, key=lambda one: (one[0], one[1] or 0))
        known = [cpus for rank in recorded if (cpus := cpus_of(run, rank)) is not None]
        now = LoaderBody(workers=workers, prefetch=prefetch)
        return cls(replayed, now, len(settings) > 1, min(known, default=None))

    @cached_property
    def prices(self) -> dict[LoaderBody, Price | Declined]:
        """The price of each setting other than the present one, from the smallest to the largest."""
        asked = [one for one in self._settings() if one != self.now]
        found = self.replayed.pricer.prices([self._spec(one) for one in asked])
        return dict(zip(asked, found, strict=True))

    def step_ns(self, loader: LoaderBody) -> float:
        """The step with a setting that has a price, or with the present one, as measured."""
        if loader == self.now:
            return self.replayed.pricer.step_ns
        price = self.prices[loader]
        assert isinstance(price, Price), "only settings with a price are compared"
        return float(price.step_ns.mean())

    def changed(self, loader: LoaderBody) -> list[str]:
        """The terms by which a setting differs from the present one."""
        return [
            *([WORKERS] if loader.workers != self.now.workers else []),
            *([PREFETCH] if loader.prefetch not in (self.now.prefetch, self.least_prefetch) else []),
        ]

    def error(self, loader: LoaderBody) -> float:
        """Known error of the prediction, as a share of a step."""
        return self.replayed.pricer.error.of_terms(self.changed(loader) or [WORKERS])

    def smallest_good(self) -> LoaderBody:
        """The smallest setting whose step exceeds the shortest one by no more than the error, as a share of that."""
        known = sorted([self.now, *(one for one, price in self.prices.items() if isinstance(price, Price))], key=_size)
        best = min(known, key=self.step_ns)
        at_most = (1 + self.error(best)) * self.step_ns(best)
        return next(one for one in known if self.step_ns(one) <= at_most)

    @property
    def least_prefetch(self) -> int:
        """Batches that each worker makes ahead now, or would by default."""
        return self.now.prefetch or _DEFAULT_PREFETCH

    @property
    def most_workers(self) -> int:
        """Most workers of a rank that are tried: one for each CPU, or twice as many as now if CPUs are unknown."""
        limit = int(self.cpus) if self.cpus is not None else 2 * self.now.workers
        return max(1, limit, self.now.workers)

    def _settings(self) -> Iterator[LoaderBody]:
        most = self.most_workers
        for workers in sorted({most, *(count for count in COUNTS if count < most)}):
            for factor in _DEEPER:
                yield LoaderBody(workers=workers, prefetch=factor * self.least_prefetch)

    def _spec(self, loader: LoaderBody) -> str:
        return f"{WORKERS}={loader.workers},{PREFETCH}={loader.prefetch}"


def advise_loader(replayed: Replayed) -> LoaderAdvice:
    """Advise the number of workers of the DataLoaders, at most as many as there are CPUs, and their `prefetch_factor`.

    Raises NotRecorded if the run has no DataLoader whose batches `esprof record` recorded, EsprofError if replay cannot
    predict other settings: its error is too large, or making batches waits for CPUs.
    """
    pricer = replayed.pricer
    if pricer.too_far_off:
        raise EsprofError(
            pricer.too_far_off, path=replayed.run.path, remedy="Record more steps, or on a quieter machine."
        )
    loaders = JobLoaders.of(replayed)
    _refuse_unpriced(loaders)
    decision = loaders.smallest_good()
    step, error = loaders.step_ns(decision), loaders.error(decision)
    price = loaders.prices.get(decision) or pricer.price_edited(pricer.dfg)
    assert isinstance(price, Price), "only settings with a price are advised"
    interval = pricer.interval(price, loaders.changed(decision))
    gain = 1 - step / pricer.step_ns
    is_elastic = has_est_records(replayed.run)
    changes_bits = not is_elastic and decision.workers != loaders.now.workers
    choices = tuple(_choices(loaders))
    advice = LoaderAdvice(
        value=us(step),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={NOW: us(pricer.step_ns)}
        | _without_stall(replayed)
        | {name_of(one.loader): one.step_us for one in choices},
        gain_pct=round(100 * gain, 3),
        error_pct=round(100 * error, 3),
        now=loaders.now,
        decision=decision,
        choices=choices,
        left_out={name_of(one): str(price) for one, price in loaders.prices.items() if isinstance(price, Declined)},
        cpus=loaders.cpus,
        changes_bits=changes_bits,
        plan=None,
        warnings=tuple(_warnings(loaders, changes_bits=changes_bits)),
    )
    if decision == loaders.now or gain < MIN_GAIN_IN_ERRORS * error:
        return advice
    return msgspec.structs.replace(advice, plan=_plan(replayed, advice, is_elastic=is_elastic))


def _refuse_unpriced(loaders: JobLoaders) -> None:
    """Raise EsprofError if no setting has a price."""
    reasons = [price for price in loaders.prices.values() if isinstance(price, Declined)]
    if len(reasons) == len(loaders.prices):
        raise EsprofError(
            str(reasons[0]),
            path=loaders.replayed.run.path,
            remedy="Record the job again, with more steps and while nothing else runs on its hosts.",
        )


def _choices(loaders: JobLoaders) -> Iterator[LoaderChoice]:
    priced = {one: price for one, price in loaders.prices.items() if isinstance(price, Price)}
    for one in sorted([loaders.now, *priced], key=_size):
        notes = priced[one].notes if one in priced else ()
        yield LoaderChoice(loader=one, step_us=us(loaders.step_ns(one)), note="; ".join(notes) or None)


def _size(loader: LoaderBody) -> tuple[int, int]:
    """Sorts settings by what they cost: processes first, then memory."""
    return loader.workers, loader.prefetch or 0


def _without_stall(replayed: Replayed) -> dict[str, float]:
    """The step if no rank waits for batches; empty if that has no price."""
    (price,) = replayed.pricer.prices(["data=0"])
    return {} if isinstance(price, Declined) else {NO_STALL: us(float(price.step_ns.mean()))}


def _warnings(loaders: JobLoaders, *, changes_bits: bool) -> Iterator[str]:
    if changes_bits:
        yield _RESEEDED
    if loaders.differ:
        yield "the DataLoaders of the ranks differ now; as advised, all have the same number of workers"
    if loaders.cpus is None:
        yield "the CPUs of the ranks are unknown: at most twice the present number of workers was tried"


def _plan(replayed: Replayed, advice: LoaderAdvice, *, is_elastic: bool) -> Plan:
    promise = PlanPromise(
        step_us=advice.value, low_us=advice.low_us, high_us=advice.high_us, baselines_us=advice.baselines
    )
    section = section_of(
        replayed,
        advice.decision,
        promise,
        applies="live" if is_elastic else "restart",
        changes_bits=advice.changes_bits,
    )
    return plan_of(replayed.run, PlanParts(loader=section))
