"""The state of a job between two steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.amp import GradScaler
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esprof.core.assignment import Assignment, Est
from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.codec import Codec
from esprof.elastic.compress.codecs.registry import check_codec, codec
from esprof.elastic.compress.ests import EstGuard, Guarded
from esprof.elastic.options import Data, Gradients, Updates
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.reach.script import ReachedState
from esprof.elastic.reach.turns import EstValues, Own
from esprof.elastic.reduce.choice import reducer
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.tree_reducer import Reducer
from esprof.elastic.runtime.attributes import Attributes
from esprof.elastic.runtime.context import EstContext
from esprof.elastic.runtime.transport import Transport


@dataclass
class TrainingState:
    """Everything that steps change on this rank: the content of a checkpoint."""

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[LRScheduler, ...]
    scaler: GradScaler
    """Scaler of the loss; disabled except for fp16."""
    reducer: Reducer
    codecs: dict[int, str]
    """Step -> text of the codec that encodes gradients from that step on."""
    contexts: dict[Est, EstContext]
    """Contexts of the ESTs that this rank runs."""
    attributes: Attributes
    """What the script has changed in attributes of the model."""
    reached: ReachedState
    """What the script's functions and objects reach besides the model."""
    values: EstValues
    """Switches what ESTs have changed in attributes, closures and globals."""
    device: torch.device
    """Device of the parameters."""
    next_step: int = 0
    """Number of the step that comes next, from 0."""
    own: Mapping[str, Stateful] = field(default_factory=dict)
    """Further state of the script, by name."""
    guard: EstGuard | None = None
    """Guard of a codec that a plan has set; None if there is none."""
    proof: ProofRecord = field(default_factory=ProofRecord)
    """Up to which step the bits are proven."""

    @classmethod
    def started(
        cls,
        model: nn.Module,
        optimizers: tuple[Optimizer, ...],
        updates: Updates,
        gradients: Gradients,
        data: Data,
        losses: Sequence[object],
        layout: Layout,
        transport: Transport,
        assignment: Assignment,
    ) -> "TrainingState":
        """The state of a job before its first step, on this rank."""
        device, bucket_mb, n_est = layout.device, gradients.bucket_mb, assignment.n_est
        scaler = GradScaler(device.type, enabled=gradients.amp == "fp16")
        reached = ReachedState(model, losses, optimizers, updates, data)
        scaler.scale(torch.zeros((), device=device))  # It begins by this; a rank may have no EST to do so.
        return cls(
            model,
            optimizers,
            updates.schedulers,
            scaler=scaler,
            reducer=reducer(
                gradients.reduction, layout, transport, n_est, bucket_mb, find_unused=gradients.find_unused
            ),
            codecs={0: gradients.codec},
            contexts={est: EstContext.new(data.seed + est, device) for est in assignment.ests[transport.rank]},
            attributes=Attributes(model),
            reached=reached,
            values=EstValues(model, reached.turns),
            device=device,
            own=dict(updates.state or {}),
        )

    @property
    def values_of_ests(self) -> list[Own]:
        """What each EST of this rank has changed in attributes, closures and globals."""
        return [context.values for context in self.contexts.values()]

    def mark(self) -> None:
        """Note attributes and data as the script gets them: what it changes until the next step is its own."""
        self.attributes.mark()
        self.reached.mark()

    def share(self, transport: Transport) -> None:
        """Start from rank 0's parameters and buffers on all ranks, as under DistributedDataParallel."""
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            transport.broadcast(tensor.detach(), 0).wait()

    def codec_spec(self, step: int) -> str:
        """Text of the codec that encodes gradients in a step."""
        return self.codecs[self._codec_start(step)]

    def check_codec(self, spec: str, from_step: int) -> None:
        """Raise UsageError for a codec that is unknown or does not fit, and for a step that is past."""
        if from_step < self.next_step:
            raise UsageError(f"step {from_step} is over: step {self.next_step} is next")
        check_codec(spec, scaled=self.scaler.is_enabled())

    def set_codec(self, spec: str, guard: Guarded | None) -> None:
        """Encode gradients with a codec from the next step on, with or without a guard."""
        self.codecs[self.next_step] = spec
        self.guard = EstGuard(guard, self.next_step) if guard is not None and spec != "none" else None

    @property
    def guarding(self) -> EstGuard | None:
        """The guard of the next step's codec; None where there is none."""
        guard = self.guard
        return guard if guard is not None and guard.from_step == self._codec_start(self.next_step) else None

    def _codec_start(self, step: int) -> int:
        return max(start for start in self.codecs if start <= step)

    def begin_codec(self) -> Codec | None:
        """The codec of the next step, None for none. Where it changes there, the ESTs' codec state is emptied."""
        if self.next_step in self.codecs:
            for context in self.contexts.values():
                context.codec.clear()
        return codec(self.codec_spec(self.next_step))
