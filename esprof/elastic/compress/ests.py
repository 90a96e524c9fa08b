"""The guard of a codec that a plan has brought to a job of ESTs: every so many steps the mean that the ranks come to
is held against that of the same gradients without a codec.

What it decides rests on what each EST has, and so not on where it runs; and it goes into checkpoints.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from esprof.core.assignment import Est
from esprof.core.plan import GuardSettings
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.compress.guard import BucketWatch, Inspection, Losses
from esprof.elastic.runtime.transport import Transport


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """A codec's plan, and how it is to be guarded."""

    plan: str
    version: int
    settings: GuardSettings


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    of: Guarded
    from_step: int
    inspections: list[Inspection]
    losses: Losses


@dataclass
class EstGuard:
    """Watches the codec that holds from `from_step` on. All ranks make the same calls, and come to the same."""

    of: Guarded
    from_step: int
    _watch: BucketWatch = field(init=False)
    _losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        self._watch, self._losses = BucketWatch(self.settings), Losses(self.settings.spike)

    @property
    def settings(self) -> GuardSettings:
        return self.of.settings

    def inspects(self, step: int, optimizers: int) -> bool:
        """Whether a step's gradients are to be brought to their exact mean, too. Of `optimizers` that take turns, step
        by step, each is looked at in its turn, as far as there are steps enough between two looks."""
        every = self.settings.every
        inspections, since = divmod(step - self.from_step, every)
        return since == inspections * (1 - every) % optimizers % every

    def note(self, loss: float) -> None:
        """Take in a step's loss."""
        self._losses.add(loss)

    def inspect(
        self,
        step: int,
        lost: float,
        gradients: Mapping[Est, float],
        states: Mapping[Est, Mapping[str, State]],
        n_est: int,
        transport: Transport,
        device: torch.device,
    ) -> str | None:
        """Why the codec is to be given up; None where it is not. `lost` is what the mean has lost (`Layout.lost`). Of
        this rank's ESTs `gradients` are squares of what was to be sent, and `states` what the codec keeps."""
        totals = torch.zeros(2 * n_est + 1, dtype=torch.float64, device=device)
        for est, square in gradients.items():
            totals[est], totals[n_est + est] = square, _unsent(states[est].values())
        # Kernels of several types of devices may differ in the last bit: rank 0's figure is everybody's.
        totals[-1] = lost if transport.rank == 0 else 0.0
        transport.add(totals).wait()
        *squares, lost = totals.tolist()
        sent, left = sum(squares[:n_est]), sum(squares[n_est:])
        found = self._watch.judge(step, lost, math.sqrt(left / sent) if sent else 0.0, spiked=self._losses.spiked)
        self._watch.inspections = self._watch.inspections[-self.settings.windows - 1 :]
        self._losses.spiked = False
        return found.alarm

    def saved(self) -> Any:
        """What a checkpoint keeps of it, for JSON."""
        inspections, losses = self._watch.inspections, self._losses
        return msgspec.to_builtins(_Saved(of=self.of, from_step=self.from_step, inspections=inspections, losses=losses))

    @classmethod
    def of_saved(cls, saved: Any) -> "EstGuard":
        state = msgspec.convert(saved, _Saved)
        guard = cls(state.of, state.from_step)
        guard._watch.inspections, guard._losses = state.inspections, state.losses
        return guard


def _unsent(states: Iterable[State]) -> Tensor | float:
    """Square of what an EST's codec has not sent so far."""
    return sum((state["residual"].double().square().sum() for state in states if "residual" in state), 0.0)
