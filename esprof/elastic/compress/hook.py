"""The communication hook: each bucket of DistributedDataParallel is compressed as its choice says."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from esprof.core.errors import MismatchError, UsageError
from esprof.core.plan import CodecChoice, CompressionBody, Exchange
from esprof.elastic.compress.codecs.codec import Codec, State
from esprof.elastic.compress.codecs.registry import codec
from esprof.elastic.compress.exchanges import Counted, Links, Steps, exchange_for, reduced, unsent
from esprof.elastic.compress.guard import BucketWatch, Look, Losses
from esprof.elastic.compress.hosts import Hosts, by_hosts, hosts_of
from esprof.elastic.compress.lane import lane_for
from esprof.elastic.runtime.transport import GroupTransport

How = str | CodecChoice | CompressionBody
"""A codec's text, or a choice, for all buckets; or what a plan says of each."""

Names = tuple[str, ...]
"""Names of a bucket's parameters, in its order."""


def compress(ddp: DistributedDataParallel, how: How, *, scaler: Any = None) -> "Compression":
    """Compress the gradients of `ddp` from its next step on. All ranks call it, before the first backward pass.

    `scaler` is the GradScaler of the loss, if there is one: what was not sent so far is scaled anew with the loss. Raises
    UsageError for an unknown codec, a topology that the ranks' hosts do not have, or where `ddp` has a hook already,
    MismatchError where the ranks want different things.
    """
    made = Compression(ddp, _body(how), scaler)
    try:
        ddp.register_comm_hook(made, _hook)
    except RuntimeError as error:
        made.close()
        raise UsageError(f"the model's gradients have a communication hook already: {error}") from error
    return made


def _hook(compression: "Compression", bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    return compression.reduce(bucket)


@dataclass
class _Bucket:
    """What is done with one bucket, and what is kept of it."""

    index: int
    choice: CodecChoice
    codec: Codec | None
    exchange: Exchange
    watch: BucketWatch
    sizes: dict[str, int]
    """Elements of each parameter, in the bucket's order."""
    state: State = field(default_factory=dict)
    carried: Tensor | None = None
    """What another choice did not send, to be added to the next gradient."""


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
        # Of those that have gradients: no others are in buckets.
        self._sizes = {name: one.numel() for name, one in named.items() if one.requires_grad and name not in ignored}
        _check(body, self._sizes)
        self.step = 0
        self.events: list[BucketEvent] = []
        self._names = {id(parameter): name for name, parameter in named.items()}
        self._scaler = scaler
        self._scale: float | None = None
        self._body, self._next = body, (0, body)
        self._buckets: dict[Names, _Bucket] = {}
        self._loose: dict[str, Tensor] = {}
        self._losses = Losses(body.guard.spike)
        group, device = ddp.process_group, next(iter(named.values())).device
        # What is started beside the backward pass has a group of its own: so all ranks start transfers in one order.
        self._is_on_cpu = device.type == "cpu"
        later = dist.new_group(dist.get_process_group_ranks(group)) if self._is_on_cpu else group
        self._first, self._later = (Counted(GroupTransport(one)) for one in (group, later))
        self._group = group
        self._hosts: Hosts | None = None
        self._agree(body, 0)
        self._find_hosts(*_choices(body))
        self._lane = lane_for(device)

    @property
    def codec(self) -> str:
        """The codec of buckets that have none of their own, now."""
        return self._body.default.codec

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others so far."""
        return self._first.sent + self._later.sent + (0 if self._hosts is None else self._hosts.sent)

    @property
    def sent_between_hosts_bytes(self) -> int:
        """Those of them that hierarchical exchanges have sent to other hosts; of flat ones it is not known which are."""
        return 0 if self._hosts is None else self._hosts.between.sent

    def looks(self) -> dict[Names, list[Look]]:
        """What the guard has seen, by bucket."""
        return {names: list(bucket.watch.looks) for names, bucket in self._buckets.items()}

    def adopt(self, how: How, at_step: int) -> None:
        """Compress as `how` says from step `at_step` on (`step` counts them). All ranks call it between the same two steps.

        What was not sent so far is added to the next gradient. Raises UsageError for a step that is over, an unknown codec
        or a topology that the ranks' hosts do not have, MismatchError where the ranks want different things; then nothing
        changes.
        """
        body = _body(how)
        _check(body, self._sizes)
        if at_step < self.step:
            raise UsageError(f"step {at_step} is over: {self.step} is next")
        self._agree(body, at_step)
        self._find_hosts(*_choices(body))
        self._next = (at_step, body)

    def observe(self, loss: float) -> None:
        """Tell the guard of this rank's loss of the step."""
        self._losses.add(loss)

    def close(self) -> None:
        """End the thread beside the backward pass. The model trains no more with this hook."""
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
            "hosts": None if self._hosts is None else list(self._hosts.of_rank),
            "buckets": [
                {
                    "index": bucket.index,
                    "sizes": dict(bucket.sizes),
                    "choice": msgspec.json.encode(bucket.choice).decode(),
                    "state": {name: tensor.clone() for name, tensor in bucket.state.items()},
                    "carried": None if bucket.carried is None else bucket.carried.clone(),
                }
                for bucket in self._buckets.values()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave on this rank of as many. All ranks call it. Raises UsageError where it is none,
        of another model or another rank, or has hierarchical exchanges between other hosts; then nothing changes."""
        _check_state(state)
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        if (state["rank"], state["world"]) != (rank, world):
            raise UsageError(
                f"the state of the compressed gradients is of rank {state['rank']} of {state['world']}, and this is rank "
                f"{rank} of {world}",
                remedy="Start as many ranks as have saved it, or leave it: what was not sent is lost then.",
            )
        if any(self._sizes.get(name) != size for one in state["buckets"] for name, size in one["sizes"].items()):
            raise UsageError("the state of the compressed gradients is of another model")
        body = msgspec.json.decode(state["body"], type=CompressionBody)
        at_step, coming = state["next"][0], msgspec.json.decode(state["next"][1], type=CompressionBody)
        choices = [msgspec.json.decode(one["choice"], type=CodecChoice) for one in state["buckets"]]
        self._find_hosts(*_choices(body), *_choices(coming), *choices)
        is_by_hosts = any(choice.topology == "hierarchical" for choice in choices)
        if is_by_hosts and state["hosts"] != list(self._known_hosts().of_rank):
            raise UsageError(
                "the state of the compressed gradients is of ranks that are on other hosts",
                remedy="Start each rank with the same others on its host, or save after a change to the topology `flat`.",
            )
        self.step, self._scale = state["step"], state["scale"]
        self._body, self._next = body, (at_step, body if coming == body else coming)
        self._loose, self._buckets = {}, {}
        for one, choice in zip(state["buckets"], choices, strict=True):
            made = self._made(one["index"], choice, dict(one["sizes"]))
            made.state = {name: tensor.clone() for name, tensor in one["state"].items()}
            made.carried = None if one["carried"] is None else one["carried"].clone()
            self._buckets[tuple(one["sizes"])] = made

    # The hook

    def reduce(self, bucket: Any) -> Future[Tensor]:
        """The mean of the ranks' gradients in a bucket of DDP, to come."""
        if bucket.index() == 0:
            self._begin_step()
        flat = bucket.buffer()
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        step, inside = self.step, self._inside(names)
        known = None if inside else self._bucket(names, bucket.index())
        self.step += bucket.is_last()
        if known is None:
            return self._lane.run(None, self._one_by_one(step, names, inside, flat), flat)
        _add_carried(known, flat)
        if known.codec is None and known.choice.topology == "flat":
            return self._plain(flat)
        beside = known.choice.encoded_by == "beside"
        steps = self._steps(step, names, known, flat, beside=beside)
        return self._lane.run(None if beside else next(steps), steps, flat)

    def _inside(self, names: Names) -> list[Names]:
        """The known buckets that together hold just these parameters, where they are no bucket of their own: DDP begins with
        other buckets than it goes on with, and a checkpoint is of those."""
        among = set(names)
        known = [] if names in self._buckets else [one for one in self._buckets if among.issuperset(one)]
        return known if sum(len(one) for one in known) == len(names) else []

    def _one_by_one(self, step: int, names: Names, inside: list[Names], flat: Tensor) -> Steps:
        """Exchange each of the known buckets that the bucket `flat` is made of."""
        sizes = [self._sizes[name] for name in names]
        for one in inside:
            part = dict(zip(names, flat.split(sizes), strict=True))
            whole = torch.cat([part[name] for name in one])
            known = self._buckets[one]
            _add_carried(known, whole)
            yield from self._steps(step, one, known, whole, beside=True)
            for name, mean in zip(one, whole.split(list(known.sizes.values())), strict=True):
                part[name].copy_(mean)

    def _begin_step(self) -> None:
        at_step, body = self._next
        if self.step >= at_step and body is not self._body:
            self._body = body
            self._losses = Losses(body.guard.spike)
            self._choose_anew()
        if self.step == self._body.warm_up_steps:
            self._choose_anew()
        if (self.step - 1) % self._body.guard.every == 0:
            self._losses.spiked = False  # All buckets have had their look.
        if self._scaler is not None:
            self._rescale(float(self._scaler.get_scale()))

    def _choose_anew(self) -> None:
        for names, known in list(self._buckets.items()):
            self._buckets[names] = self._changed(known, self._choice(known.index, known.sizes))

    def _rescale(self, scale: float) -> None:
        """Scale what was not sent as the loss is scaled now."""
        if self._scale is not None and self._scale != scale:
            for known in self._buckets.values():
                for kept in (known.state.get("residual"), known.state.get("second"), known.carried):
                    if kept is not None:
                        kept.mul_(scale / self._scale)
        self._scale = scale

    def _plain(self, flat: Tensor) -> Future[Tensor]:
        """As DDP does without a hook, with the same bits."""
        flat.mul_(1 / self._first.world)
        work: Any = self._first.add(flat)
        if not hasattr(work, "get_future"):
            return self._lane.run(work, iter(()), flat)
        done: Future[Tensor] = work.get_future().then(lambda _: flat)
        return done

    def _steps(self, step: int, names: Names, known: _Bucket, flat: Tensor, *, beside: bool) -> Steps:
        """Exchange a bucket between all ranks, or between hosts."""
        if known.choice.topology == "flat":
            links = Links(self._later if beside else self._first, self._later)
            return self._exchanged(step, names, known, flat, links)
        hosts = self._known_hosts()
        within, between = hosts.within, Links(hosts.between, hosts.between)
        return by_hosts(
            flat,
            Links(within.later if beside else within.first, within.later),
            lambda part: self._exchanged(step, names, known, part, between),
        )

    def _exchanged(self, step: int, names: Names, known: _Bucket, flat: Tensor, links: Links) -> Steps:
        """Exchange a bucket or this rank's part of it, and look at what comes of it where it is time to."""
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
        # A gradient that is not finite must not get into what is kept; what only counts goes on.
        is_sound = not encoder.has_state or bool(flat.isfinite().all())
        state = known.state if is_sound else {name: kept for name, kept in known.state.items() if name == "step"}
        yield from reduced(known.exchange, encoder, flat, state, links)
        if "step" in state:
            known.state["step"] = state["step"]
        if exact is not None:
            spiked = self._losses.spiked
            yield from known.watch.look(step, exact, flat, known.state, spiked, links.later, self._later)
            alarm = known.watch.looks[-1].alarm
            if alarm is not None:
                fallback = CodecChoice(codec=guard.fallback, topology=known.choice.topology)
                self.events.append(
                    BucketEvent(step, names, f"{known.choice.codec} is given up for {fallback.codec}: {alarm}")
                )
                self._buckets[names] = self._changed(known, fallback)

    # Buckets

    def _bucket(self, names: Names, index: int) -> _Bucket:
        """The bucket of these parameters. DDP fills its buckets anew after the first step: what older ones did not send goes
        with each parameter."""
        if names not in self._buckets:
            among = set(names)
            for old in [old for old in self._buckets if among.intersection(old)]:
                gone = self._buckets.pop(old)
                left = self._unsent(gone)
                if left is not None:
                    self._loose |= dict(zip(gone.sizes, left.split(list(gone.sizes.values())), strict=True))
            sizes = {name: self._sizes[name] for name in names}
            made = self._made(index, self._choice(index, sizes), sizes)
            loose = {name: self._loose.pop(name) for name in names if name in self._loose}
            if loose:
                like = next(iter(loose.values()))
                parts = [loose.get(name, like.new_zeros(self._sizes[name])) for name in names]
                made.carried = torch.cat(parts)
            self._buckets[names] = made
        return self._buckets[names]

    def _choice(self, index: int, sizes: dict[str, int]) -> CodecChoice:
        if self.step < self._body.warm_up_steps:
            return CodecChoice()
        alike = (one for one in self._body.buckets if (one.index, one.elements) == (index, tuple(sizes.values())))
        listed = (one for one in alike if one.parameters in ((), tuple(sizes)))
        return next(listed, self._body.default)

    def _made(self, index: int, choice: CodecChoice, sizes: dict[str, int]) -> _Bucket:
        made = codec(choice.codec)
        exchange = "all_reduce" if made is None else exchange_for(made, choice.exchange)
        return _Bucket(index, choice, made, exchange, BucketWatch(self._body.guard), sizes)

    def _changed(self, known: _Bucket, choice: CodecChoice) -> _Bucket:
        """The bucket with another choice; itself where that is no other."""
        if all(getattr(known.choice, name) == getattr(choice, name) for name in ("codec", "exchange", "topology")):
            known.choice = choice
            return known
        made = self._made(known.index, choice, known.sizes)
        made.watch.looks = known.watch.looks
        made.carried = self._unsent(known)
        return made

    def _unsent(self, known: _Bucket) -> Tensor | None:
        """What this rank has to add to the bucket's next gradient for nothing to be lost; None where that is nothing."""
        numel = sum(known.sizes.values())
        if known.choice.topology == "flat":
            kept = unsent(known.state, numel, self._first)
        else:
            kept = self._known_hosts().unsent(known.state, numel)
        found = [one for one in (known.carried, kept) if one is not None]
        return sum(found[1:], found[0].clone()) if found else None

    def _find_hosts(self, *choices: CodecChoice) -> None:
        """Find out which ranks share a host, the first time that it matters. Raises UsageError where they cannot exchange
        gradients between hosts."""
        if self._hosts is None and any(choice.topology == "hierarchical" for choice in choices):
            self._hosts = hosts_of(self._group, beside=self._is_on_cpu)

    def _known_hosts(self) -> Hosts:
        assert self._hosts is not None, "no choice is taken before the hosts that it needs are known"
        return self._hosts

    def _agree(self, body: CompressionBody, at_step: int) -> None:
        """Raise MismatchError unless all ranks have the same body, step and step to change at."""
        mine = (sha256(msgspec.json.encode(body)).hexdigest(), at_step, self.step)
        told: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(told, mine, group=self._group)
        if len(set(told)) > 1:
            raise MismatchError(
                "the ranks do not ask for the same compression of gradients, or not at the same step",
                remedy="Let all ranks make the same calls.",
            )


def _add_carried(known: _Bucket, flat: Tensor) -> None:
    """Add what another choice did not send, once."""
    if known.carried is not None:
        flat.add_(known.carried)
        known.carried = None


def _body(how: How) -> CompressionBody:
    if isinstance(how, CompressionBody):
        return how
    return CompressionBody(default=CodecChoice(codec=how) if isinstance(how, str) else how)


def _choices(body: CompressionBody) -> tuple[CodecChoice, ...]:
    return (body.default, *body.buckets)


class _BucketState(msgspec.Struct, frozen=True):
    index: int
    sizes: dict[str, int]
    choice: str
    state: dict[str, Tensor]
    carried: Tensor | None


class _HookState(msgspec.Struct, frozen=True):
    rank: int
    world: int
    step: int
    scale: float | None
    body: str
    next: tuple[int, str]
    hosts: list[Any] | None
    buckets: list[_BucketState]


def _check_state(state: object) -> None:
    """Raise UsageError for what no `state_dict` gave."""
    try:
        told = msgspec.convert(state, _HookState)
        for body in (told.body, told.next[1]):
            msgspec.json.decode(body, type=CompressionBody)
        for bucket in told.buckets:
            msgspec.json.decode(bucket.choice, type=CodecChoice)
    except msgspec.MsgspecError as error:
        raise UsageError(f"this is no state of compressed gradients: {error}") from error


def _check(body: CompressionBody, sizes: dict[str, int]) -> None:
    """Raise UsageError for an unknown codec, an exchange that it cannot have, or gradients of another model."""
    if body.sharded != "none":
        raise UsageError("the plan is for sharded gradients, and those of DistributedDataParallel are in buckets")
    for choice in (*_choices(body), CodecChoice(codec=body.guard.fallback)):
        made = codec(choice.codec)
        if made is not None:
            exchange_for(made, choice.exchange)
    for bucket in body.buckets:
        unknown = [name for name in bucket.parameters if name not in sizes]
        if unknown:
            raise UsageError(f"the plan is of another model: this one has no parameter {unknown[0]!r}")
    listed, numel = sum(sum(bucket.elements) for bucket in body.buckets), sum(sizes.values())
    if body.buckets and listed != numel:
        raise UsageError(f"the plan is of another model: it has {listed:,} elements, and this one {numel:,}")
