"""Loops of the shapes that two well-known trainers give them."""

import io
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from pattern_parts import batches, loss_of, mlp, parallel
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

_Batch = tuple[Tensor, Tensor]


class Callback:
    """Hooks around a batch; each does a little of what callbacks do."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, model: nn.Module, batch: _Batch) -> None:
        model.train()

    def on_before_optimizer_step(self, model: nn.Module) -> None:
        self.seen.append(max(float(p.grad.norm()) for p in model.parameters() if p.grad is not None))

    def on_train_batch_end(self, model: nn.Module, loss: float) -> None:
        self.seen.append(loss)


class LightningShaped:
    """Automatic optimization hands the whole training step to the optimizer, as a closure."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self._model = parallel(mlp())
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._callbacks = callbacks

    def fit(self, steps: int, *, automatic: bool) -> Iterator[float]:
        for batch in batches(steps):
            self._call("on_train_batch_start", batch)
            loss = self._automatic(batch) if automatic else self._manual(batch)
            self._call("on_train_batch_end", loss)
            yield loss

    def _automatic(self, batch: _Batch) -> float:
        def closure() -> Tensor:
            loss = loss_of(self._model, batch)
            self._optimizer.zero_grad()
            loss.backward()
            self._call("on_before_optimizer_step")
            return loss

        return self._optimizer.step(closure).item()

    def _manual(self, batch: _Batch) -> float:
        loss = loss_of(self._model, batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._call("on_before_optimizer_step")
        self._optimizer.step()
        return loss.item()

    def _call(self, hook: str, *arguments: object) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self._model, *arguments)


def lightning(steps: int) -> Iterator[float]:
    """The first half automatic, the second one manual."""
    loop = LightningShaped([Callback(), Callback()])
    yield from loop.fit(steps // 2, automatic=True)
    yield from loop.fit(steps - steps // 2, automatic=False)


def trainer(steps: int, accumulate: int = 2, evaluate_every: int = 4, save_every: int = 5) -> Iterator[float]:
    """As the Trainer of `transformers` does it: accumulate, clip, step, schedule, clear; now and then evaluate and save."""
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    feed = batches(accumulate * steps)
    for step in range(1, steps + 1):
        total = 0.0
        for micro in range(accumulate):
            with nullcontext() if micro == accumulate - 1 else model.no_sync():
                loss = loss_of(model, next(feed)) / accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        yield total
        if step % evaluate_every == 0:
            yield _evaluated(model)
        if step % save_every == 0:
            _save({"model": model, "optimizer": optimizer, "scheduler": scheduler})


def _evaluated(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        loss = torch.stack([loss_of(model, batch) for batch in batches(3)]).mean()
    model.train()
    return loss.item()


def _save(parts: dict[str, nn.Module | torch.optim.Optimizer | LambdaLR]) -> None:
    torch.save({name: part.state_dict() for name, part in parts.items()}, io.BytesIO())
