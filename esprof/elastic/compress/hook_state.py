"""The checkpoint state of compressed gradients, and its validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from esprof.core.errors import UsageError
from esprof.core.plan import CodecChoice, CompressionBody


class _SavedBucket(msgspec.Struct, frozen=True):
    index: int
    sizes: dict[str, int]
    choice: str
    state: dict[str, Tensor]
    carried: Tensor | None


class _SavedHook(msgspec.Struct, frozen=True):
    rank: int
    world: int
    step: int
    scale: float | None
    body: str
    next: tuple[int, str]
    hosts: list[Any] | None
    buckets: list[_SavedBucket]


def _check_state(state: object) -> None:
    """Raise UsageError for anything other than a result of `state_dict`."""
    try:
        saved = msgspec.convert(state, _SavedHook)
        for body in (saved.body, saved.next[1]):
            msgspec.json.decode(body, type=CompressionBody)
        for bucket in saved.buckets:
            msgspec.json.decode(bucket.choice, type=CodecChoice)
    except msgspec.MsgspecError as error:
        raise UsageError(f"this is not a state of compressed gradients: {error}") from error


@dataclass(frozen=True)
class SavedCompression:
    """The decoded result of `Compression.state_dict`."""

    step: int
    scale: float | None
    body: CompressionBody
    at_step: int
    coming: CompressionBody
    """Compression from step `at_step` on; `body` itself if no change is pending."""
    choices: list[CodecChoice]
    """Codec of each of `buckets`."""
    buckets: list[dict[str, Any]]
    hosts: list[int] | None

    @classmethod
    def read(cls, state: dict[str, Any], rank: int, world: int, sizes: Mapping[str, int]) -> "SavedCompression":
        """Decode a result of `state_dict`. Raises UsageError for anything else, and for the state of another rank or
        model; `sizes` are the elements of each parameter of this model."""
        _check_state(state)
        if (state["rank"], state["world"]) != (rank, world):
            raise UsageError(
                f"the state of the compressed gradients belongs to rank {state['rank']} of {state['world']}; this is rank "
                f"{rank} of {world}",
                remedy="Start as many ranks as saved it, or drop the state: its residuals are then lost.",
            )
        if any(sizes.get(name) != size for one in state["buckets"] for name, size in one["sizes"].items()):
            raise UsageError("the state of the compressed gradients belongs to another model")
        body = msgspec.json.decode(state["body"], type=CompressionBody)
        coming = msgspec.json.decode(state["next"][1], type=CompressionBody)
        return cls(
            step=state["step"],
            scale=state["scale"],
            body=body,
            at_step=state["next"][0],
            coming=body if coming == body else coming,
            choices=[msgspec.json.decode(one["choice"], type=CodecChoice) for one in state["buckets"]],
            buckets=state["buckets"],
            hosts=state["hosts"],
        )

    def check_hosts(self, of_rank: tuple[int, ...] | None) -> None:
        """Raise UsageError if it has hierarchical exchanges between other hosts than `of_rank`, the host of each rank."""
        is_by_hosts = any(choice.topology == "hierarchical" for choice in self.choices)
        if is_by_hosts and (of_rank is None or self.hosts != list(of_rank)):
            raise UsageError(
                "the state of the compressed gradients belongs to ranks on other hosts",
                remedy="Start each host with the same ranks, or save after a change to the topology `flat`.",
            )
