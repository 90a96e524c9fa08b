"""Advice on the DataLoader of one job, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.step_advice import StepAdvice
from esprof.core.plan import LoaderBody, Plan

NOW, NO_STALL = "now", "no input stall"
"""Baselines beside those of the settings."""


class LoaderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was tried."""

    loader: LoaderBody
    step_us: float
    """Predicted step; of the present setting, the measured one."""
    note: str | None = None


class LoaderAdvice(StepAdvice, frozen=True, kw_only=True):
    """Advised number of workers of each rank's DataLoader, and of batches that each prefetches.

    The baseline `no input stall` is a step in which no rank waits for batches; the others are the settings.
    """

    schema: Literal["esprof.loader-advice/1"] = "esprof.loader-advice/1"
    objective: Literal["step"] = "step"
    now: LoaderBody
    """Present setting, of the rank with most workers."""
    decision: LoaderBody
    """The smallest setting whose step is longer than the shortest one by no more than the error."""
    choices: tuple[LoaderChoice, ...]
    """All settings with a prediction, from the smallest to the largest."""
    left_out: dict[str, str]
    """Setting without a prediction -> reason."""
    cpus: float | None
    """CPUs of each rank, which limit the workers; None if unknown: then at most twice as many workers are advised."""
    changes_bits: bool
    """Whether training gives other bits with it."""
    plan: Plan | None
    """None if the gain is less than twice the error."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...] = (
        "storage that slows down if more workers read at once",
        "the time to pass a batch between processes, if there are no workers now",
        "memory for workers and their batches",
        "the start of an epoch, in which workers have made no batch yet",
    )


def name_of(loader: LoaderBody) -> str:
    """A setting in words, as in baselines."""
    if not loader.workers:
        return "no workers"
    workers = "1 worker" if loader.workers == 1 else f"{loader.workers} workers"
    return f"{workers}, prefetch {loader.prefetch}"
