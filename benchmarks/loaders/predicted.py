"""What is predicted of a change, from a recording of the job before it: by replay, and by DS-Analyzer's rule."""

from contextlib import suppress
from dataclasses import dataclass

from esprof import Run
from esprof.core.types import NS_PER_MS, NS_PER_US
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.error.model_errors import JobClass
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.loading.batches import RecordedBatches, batches_of
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.term import Loading


@dataclass(frozen=True)
class Predicted:
    """Predicted steps, ms. Those of esprof are None if it declined, with the reason."""

    job_class: JobClass
    now: float
    """The recorded step."""
    step: float | None
    low: float | None
    high: float | None
    reason: str | None
    min_fpg: float
    starved_pct: float
    """Share of the time to make batches in which workers waited for a CPU."""


def predict(run: Run, what_if: str) -> Predicted:
    """Both predictions. Raises Declined if the run has no batches of a loader."""
    replayed = Replayed.of(run, max_error_pct=100)
    batches = batches_of(run, 0, replayed.pricer.steps)
    if batches is None:
        raise Declined("the run has no batches of a DataLoader")
    (said,) = replayed.pricer.answers([what_if])
    return Predicted(
        job_class=replayed.pricer.error.job_class,
        now=replayed.pricer.step_ns / NS_PER_MS,
        step=_ms(said.predicted_us),
        low=_ms(said.low_us),
        high=_ms(said.high_us),
        reason=said.reason,
        min_fpg=min_fpg_ms(replayed, batches, what_if),
        starved_pct=100 * batches.starved,
    )


def min_fpg_ms(replayed: Replayed, batches: RecordedBatches, what_if: str) -> float:
    """The step by DS-Analyzer (VLDB 2021, §4.2 and §5.1): that of the slowest of fetching, preparing, and the device.

    Fetching and preparing are taken to overlap, each as fast as all workers together. For fetching, that is the time in
    which the making of a batch is blocked; for preparing, the rest of it. The device's step is one with ready batches.
    """
    terms = parse(what_if)
    for term in terms:
        if isinstance(term.kind.effect, Loading):
            with suppress(Declined):  # Then it changes nothing here.
                batches = term.kind.effect.change(batches, term)
    others = [term.text for term in terms if not isinstance(term.kind.effect, Loading)]
    device = float(replayed.pricer.price(",".join([*others, "data[ready]=0"])).step_ns.mean())
    ran_ns = batches.cpu_ns + batches.ready_ns
    fetch, prepare = (batches.took_ns - ran_ns).mean(), ran_ns.mean()
    return max(device, float(max(fetch, prepare)) / max(1, batches.workers) * batches.per_step) / NS_PER_MS


def _ms(us: float | None) -> float | None:
    return None if us is None else us * NS_PER_US / NS_PER_MS
