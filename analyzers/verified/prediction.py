"""Replay's predictions for a run, with the class of its job."""

from esprof.core.errors import EsprofError
from esprof.replay import Replayed, answer
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.replay.whatif.term import Term
from esprof.run.logs import JobClass, ReplayPrediction
from esprof.run.run import Run
from esprof.run.schema import Table

_GRADIENTS = (
    ("DDP", "DistributedDataParallel.forward"),
    ("FSDP", "FSDP::"),
    ("FSDP", "FullyShardedDataParallel.forward"),
)
"""(wrapper that synchronises gradients, prefix of the names of its operations)."""


class NoPrediction(EsprofError):
    """Replay makes no prediction, so there is nothing to verify."""


def predict(run: Run, spec: str, max_error_pct: float = MAX_ERROR_PCT) -> ReplayPrediction:
    """Replay's prediction of the scenario `spec`. Raises NoPrediction if replay declines it, for example because its error
    on the run is above `max_error_pct`; UsageError if `spec` is invalid."""
    found = answer(Replayed.of(run, max_error_pct=max_error_pct), [spec])
    (said,) = found.what_if
    if said.predicted_us is None:
        raise NoPrediction(f"no prediction of {spec}: {said.reason}")
    assert said.low_us is not None
    assert said.high_us is not None
    assert said.saving_low_us is not None
    assert said.saving_high_us is not None
    return ReplayPrediction(
        spec=spec,
        terms=tuple(dict.fromkeys(map(name_of, parse(spec)))),
        job=job_class(run),
        step_us=found.step_us,
        predicted_us=said.predicted_us,
        low_us=said.low_us,
        high_us=said.high_us,
        saving_low_us=said.saving_low_us,
        saving_high_us=said.saving_high_us,
        known_error_pct=found.known_error_pct,
        unprofiled_step_us=found.unprofiled_step_us,
        note=said.note,
        versions=run.meta.versions,
    )


def name_of(term: Term) -> str:
    """Name of a term's kind, with a textual argument in brackets, as in `data[ready]`."""
    return f"{term.kind.name}[{term.argument}]" if isinstance(term.argument, str) else term.kind.name


def job_class(run: Run) -> JobClass:
    # `cpu:gloo,cuda:nccl` has one backend per kind of device; the job used that of its own kind.
    of_groups = {backend for group in run.meta.groups if group.backend for backend in group.backend.split(",")}
    kind = "cuda" if any(rank.accelerators for rank in run.meta.ranks) else "cpu"
    backends = sorted(
        {
            backend.removeprefix(f"{kind}:")
            for backend in of_groups
            if ":" not in backend or backend.startswith(f"{kind}:")
        }
    )
    # Names of processors are too specific for a class of jobs.
    devices = sorted({rank.device or "accelerator" if rank.accelerators else "CPU" for rank in run.meta.ranks})
    return JobClass(
        backend=" and ".join(backends) or None,
        devices=" and ".join(devices),
        world_size=run.world_size,
        gradients=_gradients(run.events(run.ranks[0])),
    )


def _gradients(events: Table) -> str | None:
    names = set(events.texts("name"))
    for what, begin in _GRADIENTS:
        if any(name.startswith(begin) for name in names if name):
            return what
    return "collectives" if events.is_kind("collective").any() else None
