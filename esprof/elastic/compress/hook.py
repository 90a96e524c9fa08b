"""The communication hook, which compresses each bucket of DistributedDataParallel by its own choice of codec."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from esprof.core.errors import MismatchError, UsageError
from esprof.core.plan import CodecChoice, CompressionBody
from esprof.elastic.compress.codecs.registry import codec
from esprof.elastic.compress.exchanges import Counted, Links, Steps, exchange_for, reduced
from esprof.elastic.compress.guard import Inspection, Losses
from esprof.elastic.compress.hook_buckets import HookBucket, HookBuckets, Names
from esprof.elastic.compress.hook_state import SavedCompression
from esprof.elastic.compress.hosts import SharedHosts, by_hosts
from esprof.elastic.compress.lane import lane_for
from esprof.elastic.runtime.transport import GroupTransport

How = str | CodecChoice | CompressionBody
"""A codec's text or a choice for all buckets, or the compression section of a plan."""


def compress(ddp: DistributedDataParallel, how: How, *, scaler: Any = None) -> "Compression":
    """Compress the gradients of `ddp` from its next step on. All ranks call it, before the first backward pass.

    `scaler` is the GradScaler of the loss, if there is one: residuals are rescaled when the loss scale changes. Raises
    UsageError for an unknown codec, a topology that the hosts do not support, or if `ddp` already has a hook;
    MismatchError if the ranks ask for different compression.
    """
    made = Compression(ddp, _body(how), scaler)
    try:
        ddp.register_comm_hook(made, _hook)
    except RuntimeError as error:
        made.close()
        raise UsageError(f"the model already has a communication hook: {error}") from error
    return made


def _hook(compression: "Compression", bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    return compression.reduce(bucket)


@dataclass(frozen=True)
class BucketEvent:
    """Something that happened to a bucket."""

    step: int
    parameters: Names
    what: str


class Compression:
    """The state of the hook; `compress` makes it."""

    step: int
    """Backward passes that have exchanged gradients so far."""

    def __init__(self, ddp: DistributedDataParallel, body: CompressionBody, scaler: Any) -> None:
        named = dict(ddp.module.named_parameters())
        ignored = ddp.parameters_to_ignore
        # Only parameters with gradients are in buckets.
        self._sizes = {name: one.numel() for name, one in named.items() if one.requires_grad and name not in ignored}
        _check(body, self._sizes)
        self.step = 0
        self.events: list[BucketEvent] = []
        self._names = {id(parameter): name for name, parameter in named.items()}
        self._scaler = scaler
        self._scale: float | None = None
        self._body, self._next = body, (0, body)
        self._losses = Losses(body.guard.spike)
        group, device = ddp.process_group, next(iter(named.values())).device
        # Collectives started by the lane's thread have a group of their own, so that all ranks start them in the same order.
        self._is_on_cpu = device.type == "cpu"
        later = dist.new_group(dist.get_process_group_ranks(group)) if self._is_on_cpu else group
        self._first, self._later = (Counted(GroupTransport(one)) for one in (group, later))
        self._group = group
        self._hosts = SharedHosts(group, threaded=self._is_on_cpu)
        self.buckets = HookBuckets(self._sizes, self._hosts, self._first)
        self._agree(body, 0)
        self._hosts.find_for(*_choices(body))
        self._lane = lane_for(device)

    @property
    def codec(self) -> str:
        """The present default codec of buckets."""
        return self._body.default.codec

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others so far."""
        return self._first.sent + self._later.sent + (0 if self._hosts.found is None else self._hosts.found.sent)

    @property
    def sent_between_hosts_bytes(self) -> int:
        """Bytes that hierarchical exchanges have sent to other hosts; unknown, and not included, for flat exchanges."""
        return 0 if self._hosts.found is None else self._hosts.found.between.sent

    def inspections(self) -> dict[Names, list[Inspection]]:
        """The inspections of the guard, by bucket."""
        return {names: list(bucket.watch.inspections) for names, bucket in self.buckets.known.items()}

    def adopt(self, how: How, at_step: int) -> None:
        """Compress as `how` says from step `at_step` on (`step` counts them). All ranks call it between the same two
        steps.

        Residuals are added to the next gradient. Raises UsageError for a step that is over, an unknown codec or a
        topology that the hosts do not support, MismatchError if the ranks ask for different compression; then nothing
        changes.
        """
        body = _body(how)
        _check(body, self._sizes)
        if at_step < self.step:
            raise UsageError(f"step {at_step} is over: step {self.step} is next")
        self._agree(body, at_step)
        self._hosts.find_for(*_choices(body))
        self._next = (at_step, body)

    def observe(self, loss: float) -> None:
        """Report this rank's loss of the step to the guard."""
        self._losses.add(loss)

    def close(self) -> None:
        """End the communication thread. The model cannot train with this hook afterwards."""
        self._lane.close()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: tensors, numbers and texts."""
        return {
            "rank": dist.get_rank(self._group),
            "world": dist.get_world_size(self._group),
            "step": self.step,
            "scale": self._scale,
            "body": msgspec.json.encode(self._body).decode(),
            "next": [self._next[0], msgspec.json.encode(self._next[1]).decode()],
            "hosts": None if self._hosts.found is None else list(self._hosts.found.of_rank),
            "buckets": self.buckets.saved(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict` on the same rank and number of ranks. All ranks call it. Raises
        UsageError if it is invalid, of another model or rank, or has hierarchical exchanges between other hosts; then
        nothing changes."""
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        saved = SavedCompression.read(state, rank, world, self._sizes)
        self._hosts.find_for(*_choices(saved.body), *_choices(saved.coming), *saved.choices)
        saved.check_hosts(None if self._hosts.found is None else self._hosts.found.of_rank)
        self.step, self._scale = saved.step, saved.scale
        self._body, self._next = saved.body, (saved.at_step, saved.coming)
        self.buckets.load(saved.buckets, saved.choices, saved.body)

    def reduce(self, bucket: Any) -> Future[Tensor]:
        """A future of the mean of the ranks' gradients in a bucket of DDP."""
        if bucket.index() == 0:
            self._begin_step()
        flat = bucket.buffer()
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        step, inside = self.step, self.buckets.inside(names)
        known = None if inside else self.buckets.bucket(names, bucket.index(), self._body, step)
        self.step += bucket.is_last()
        if known is None:
            return self._lane.run(None, self._one_by_one(step, names, inside, flat), flat)
        known.add_carried(flat)
        if known.codec is None and known.choice.topology == "flat":
            return self._plain(flat)
        in_lane = known.choice.encoded_by == "beside"
        steps = self._steps(step, names, known, flat, in_lane=in_lane)
        return self._lane.run(None if in_lane else next(steps), steps, flat)

    def _one_by_one(self, step: int, names: Names, inside: list[Names], flat: Tensor) -> Steps:
        """Exchange each of the known buckets that make up the bucket `flat`."""
        sizes = [self._sizes[name] for name in names]
        for one in inside:
            gradients = dict(zip(names, flat.split(sizes), strict=True))
            whole = torch.cat([gradients[name] for name in one])
            known = self.buckets.known[one]
            known.add_carried(whole)
            yield from self._steps(step, one, known, whole, in_lane=True)
            for name, mean in zip(one, whole.split(list(known.sizes.values())), strict=True):
                gradients[name].copy_(mean)

    def _begin_step(self) -> None:
        at_step, body = self._next
        if self.step >= at_step and body is not self._body:
            self._body = body
            self._losses = Losses(body.guard.spike)
            self.buckets.choose_anew(self._body, self.step)
        if self.step == self._body.warm_up_steps:
            self.buckets.choose_anew(self._body, self.step)
        if (self.step - 1) % self._body.guard.every == 0:
            self._losses.spiked = False  # All buckets have been inspected.
        if self._scaler is not None:
            scale = float(self._scaler.get_scale())
            if self._scale is not None and self._scale != scale:  # Residuals have the old loss scale.
                self.buckets.rescale(scale / self._scale)
            self._scale = scale

    def _plain(self, flat: Tensor) -> Future[Tensor]:
        """As DDP does without a hook, with the same bits."""
        flat.mul_(1 / self._first.world)
        work: Any = self._first.add(flat)
        if not hasattr(work, "get_future"):
            return self._lane.run(work, iter(()), flat)
        done: Future[Tensor] = work.get_future().then(lambda _: flat)
        return done

    def _steps(self, step: int, names: Names, known: HookBucket, flat: Tensor, *, in_lane: bool) -> Steps:
        """Exchange a bucket between all ranks, or between hosts."""
        if known.choice.topology == "flat":
            links = Links(self._later if in_lane else self._first, self._later)
            return self._exchanged(step, names, known, flat, links)
        hosts = self._hosts.known
        within, between = hosts.within, Links(hosts.between, hosts.between)
        return by_hosts(
            flat,
            Links(within.later if in_lane else within.first, within.later),
            lambda shard: self._exchanged(step, names, known, shard, between),
        )

    def _exchanged(self, step: int, names: Names, known: HookBucket, flat: Tensor, links: Links) -> Steps:
        """Exchange a bucket or this rank's shard of it, and inspect the result if due."""
        encoder = known.codec
        if encoder is None:
            flat.mul_(1 / links.first.world)
            yield links.first.add(flat)
            return
        exact, guard = None, self._body.guard
        # The fallback itself is not given up.
        if step % guard.every == 0 and known.choice.codec != guard.fallback:
            residual = known.state.get("residual")
            exact = flat.clone() if residual is None else flat + residual[: len(flat)]
        # A non-finite gradient must not enter the residual; the step counter continues.
        is_sound = not encoder.has_state or bool(flat.isfinite().all())
        state = known.state if is_sound else {name: tensor for name, tensor in known.state.items() if name == "step"}
        yield from reduced(known.exchange, encoder, flat, state, links)
        if "step" in state:
            known.state["step"] = state["step"]
        if exact is not None:
            spiked = self._losses.spiked
            yield from known.watch.inspect(step, exact, flat, known.state, spiked, links.later, self._later)
            alarm = known.watch.inspections[-1].alarm
            if alarm is not None:
                fallback = CodecChoice(codec=guard.fallback, topology=known.choice.topology)
                self.events.append(
                    BucketEvent(step, names, f"{known.choice.codec} is given up for {fallback.codec}: {alarm}")
                )
                self.buckets.choose(names, fallback, self._body)

    def _agree(self, body: CompressionBody, at_step: int) -> None:
        """Raise MismatchError unless all ranks have the same body, step and step of the change."""
        mine = (sha256(msgspec.json.encode(body)).hexdigest(), at_step, self.step)
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, mine, group=self._group)
        if len(set(gathered)) > 1:
            raise MismatchError(
                "the ranks ask for different gradient compression, or at different steps",
                remedy="Make the same calls on all ranks.",
            )


def _body(how: How) -> CompressionBody:
    if isinstance(how, CompressionBody):
        return how
    return CompressionBody(default=CodecChoice(codec=how) if isinstance(how, str) else how)


def _choices(body: CompressionBody) -> tuple[CodecChoice, ...]:
    return (body.default, *body.buckets)


def _check(body: CompressionBody, sizes: dict[str, int]) -> None:
    """Raise UsageError for an unknown codec, an exchange that it cannot have, or gradients of another model."""
    if body.sharded != "none":
        raise UsageError("the plan is for sharded gradients; DistributedDataParallel has buckets")
    for choice in (*_choices(body), CodecChoice(codec=body.guard.fallback)):
        made = codec(choice.codec)
        if made is not None:
            exchange_for(made, choice.exchange)
    for bucket in body.buckets:
        unknown = [name for name in bucket.parameters if name not in sizes]
        if unknown:
            raise UsageError(f"the plan is for another model: this one has no parameter {unknown[0]!r}")
    listed, numel = sum(sum(bucket.elements) for bucket in body.buckets), sum(sizes.values())
    if body.buckets and listed != numel:
        raise UsageError(f"the plan is for another model: that has {listed:,} elements, this one {numel:,}")
