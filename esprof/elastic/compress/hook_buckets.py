"""The buckets of a compressed model, with their codecs and residuals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from esprof.core.plan import CodecChoice, CompressionBody, Exchange
from esprof.elastic.compress.codecs.codec import Codec, State
from esprof.elastic.compress.codecs.registry import codec
from esprof.elastic.compress.exchanges import Counted, exchange_for, unsent
from esprof.elastic.compress.guard import BucketWatch
from esprof.elastic.compress.hosts import SharedHosts

Names = tuple[str, ...]
"""Names of a bucket's parameters, in its order."""


@dataclass
class HookBucket:
    """The codec and state of one bucket."""

    index: int
    choice: CodecChoice
    codec: Codec | None
    exchange: Exchange
    watch: BucketWatch
    sizes: dict[str, int]
    """Elements of each parameter, in the bucket's order."""
    state: State = field(default_factory=dict)
    carried: Tensor | None = None
    """Residual of a previous choice, to be added to the next gradient."""

    def add_carried(self, flat: Tensor) -> None:
        """Add the residual of a previous choice, once."""
        if self.carried is not None:
            flat.add_(self.carried)
            self.carried = None


class HookBuckets:
    """The buckets that the ranks have exchanged, by the names of their parameters."""

    def __init__(self, sizes: dict[str, int], hosts: SharedHosts, flat_link: Counted) -> None:
        """`sizes` are elements of each parameter; `flat_link` connects all ranks."""
        self.known: dict[Names, HookBucket] = {}
        self._sizes, self._hosts, self._flat_link = sizes, hosts, flat_link
        self._loose: dict[str, Tensor] = {}
        """Residuals of removed buckets, by parameter."""

    def bucket(self, names: Names, index: int, body: CompressionBody, step: int) -> HookBucket:
        """The bucket of these parameters. DDP rebuilds its buckets after the first step: residuals of old buckets are
        moved parameter by parameter."""
        if names not in self.known:
            among = set(names)
            for old in [old for old in self.known if among.intersection(old)]:
                gone = self.known.pop(old)
                left = self._unsent(gone)
                if left is not None:
                    self._loose |= dict(zip(gone.sizes, left.split(list(gone.sizes.values())), strict=True))
            sizes = {name: self._sizes[name] for name in names}
            made = _made(index, _choice(body, step, index, sizes), sizes, body)
            loose = {name: self._loose.pop(name) for name in names if name in self._loose}
            if loose:
                like = next(iter(loose.values()))
                pieces = [loose.get(name, like.new_zeros(self._sizes[name])) for name in names]
                made.carried = torch.cat(pieces)
            self.known[names] = made
        return self.known[names]

    def inside(self, names: Names) -> list[Names]:
        """The known buckets that together hold exactly these parameters, if these are no known bucket: DDP starts with
        other buckets than the later ones, of which a checkpoint is."""
        among = set(names)
        known = [] if names in self.known else [one for one in self.known if among.issuperset(one)]
        return known if sum(len(one) for one in known) == len(names) else []

    def choose_anew(self, body: CompressionBody, step: int) -> None:
        """Choose the codec of each bucket by `body` from this step on."""
        for names, known in list(self.known.items()):
            self.choose(names, _choice(body, step, known.index, known.sizes), body)

    def choose(self, names: Names, choice: CodecChoice, body: CompressionBody) -> None:
        """Set the choice of a bucket. Its residual is carried over."""
        known = self.known[names]
        if all(getattr(known.choice, name) == getattr(choice, name) for name in ("codec", "exchange", "topology")):
            known.choice = choice
            return
        made = _made(known.index, choice, known.sizes, body)
        made.watch.inspections = known.watch.inspections
        made.carried = self._unsent(known)
        self.known[names] = made

    def rescale(self, factor: float) -> None:
        """Scale all residuals."""
        for known in self.known.values():
            for tensor in (known.state.get("residual"), known.state.get("second"), known.carried):
                if tensor is not None:
                    tensor.mul_(factor)

    def saved(self) -> list[dict[str, Any]]:
        """Copies of all buckets, for a checkpoint."""
        return [
            {
                "index": bucket.index,
                "sizes": dict(bucket.sizes),
                "choice": msgspec.json.encode(bucket.choice).decode(),
                "state": {name: tensor.clone() for name, tensor in bucket.state.items()},
                "carried": None if bucket.carried is None else bucket.carried.clone(),
            }
            for bucket in self.known.values()
        ]

    def load(self, saved: Sequence[dict[str, Any]], choices: Sequence[CodecChoice], body: CompressionBody) -> None:
        """Restore the result of `saved`, with these choices."""
        self._loose, self.known = {}, {}
        for one, choice in zip(saved, choices, strict=True):
            made = _made(one["index"], choice, dict(one["sizes"]), body)
            made.state = {name: tensor.clone() for name, tensor in one["state"].items()}
            made.carried = None if one["carried"] is None else one["carried"].clone()
            self.known[tuple(one["sizes"])] = made

    def _unsent(self, known: HookBucket) -> Tensor | None:
        """The residual that this rank has to add to the bucket's next gradient; None if there is none."""
        numel = sum(known.sizes.values())
        if known.choice.topology == "flat":
            residual = unsent(known.state, numel, self._flat_link)
        else:
            residual = self._hosts.known.unsent(known.state, numel)
        found = [one for one in (known.carried, residual) if one is not None]
        return sum(found[1:], found[0].clone()) if found else None


def _choice(body: CompressionBody, step: int, index: int, sizes: dict[str, int]) -> CodecChoice:
    """How a bucket is encoded in a step."""
    if step < body.warm_up_steps:
        return CodecChoice()
    alike = (one for one in body.buckets if (one.index, one.elements) == (index, tuple(sizes.values())))
    listed = (one for one in alike if one.parameters in ((), tuple(sizes)))
    return next(listed, body.default)


def _made(index: int, choice: CodecChoice, sizes: dict[str, int], body: CompressionBody) -> HookBucket:
    made = codec(choice.codec)
    exchange = "all_reduce" if made is None else exchange_for(made, choice.exchange)
    return HookBucket(index, choice, made, exchange, BucketWatch(body.guard), sizes)
