"""The guard of a codec that a plan has set in a job of ESTs. At an interval it compares the mean gradient with that of the
same gradients without a codec.

Its decisions depend on the values of each EST, not on where they run; its state is saved in checkpoints.
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
    """The plan of a codec, and the settings of its guard."""

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
    """Guards the codec that is used from `from_step` on. All ranks make the same calls and get the same results."""

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
        """Whether to compute the exact mean of a step's gradients, too. Alternating `optimizers` are inspected one
        after the other, if the interval between inspections is long enough."""
        every = self.settings.every
        inspections, since = divmod(step - self.from_step, every)
        return since == inspections * (1 - every) % optimizers % every

    def note(self, loss: float) -> None:
        """Record a step's loss."""
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
        """Why the codec is given up; None if it is not. `lost` is the relative squared error of the mean
        (`Layout.lost`). For the ESTs of this rank, `gradients` are squared norms before encoding, and `states` the
        codec's states."""
        totals = torch.zeros(2 * n_est + 1, dtype=torch.float64, device=device)
        for est, square in gradients.items():
            totals[est], totals[n_est + est] = square, _unsent(states[est].values())
        # Kernels of different device types may differ in the last bit: all ranks use rank 0's value.
        totals[-1] = lost if transport.rank == 0 else 0.0
        transport.add(totals).wait()
        *squares, lost = totals.tolist()
        sent, left = sum(squares[:n_est]), sum(squares[n_est:])
        found = self._watch.judge(step, lost, math.sqrt(left / sent) if sent else 0.0, spiked=self._losses.spiked)
        self._watch.inspections = self._watch.inspections[-self.settings.windows - 1 :]
        self._losses.spiked = False
        return found.alarm

    def saved(self) -> Any:
        """The state for a checkpoint, JSON-serializable."""
        inspections, losses = self._watch.inspections, self._losses
        return msgspec.to_builtins(_Saved(of=self.of, from_step=self.from_step, inspections=inspections, losses=losses))

    @classmethod
    def of_saved(cls, saved: Any) -> "EstGuard":
        state = msgspec.convert(saved, _Saved)
        guard = cls(state.of, state.from_step)
        guard._watch.inspections, guard._losses = state.inspections, state.losses
        return guard


def _unsent(states: Iterable[State]) -> Tensor | float:
    """Squared norm of an EST's residuals."""
    return sum((state["residual"].double().square().sum() for state in states if "residual" in state), 0.0)
