"""The step-hash log of an elastic job: JSON lines, a header with the fingerprint, then a line for each step.

Reading it needs no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from esprof.core.errors import InputError, unreadable

SCHEMA = "esprof.step-log/1"

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]
"""Value of one field of a fingerprint. A list has the value of each rank, where the ranks differ."""


class Difference(msgspec.Struct, frozen=True):
    """A field in which two jobs differ, and what it is in each, as text."""

    field: str
    a: str
    b: str


class Fingerprint(msgspec.Struct, frozen=True):
    """All that the bits of a run depend on besides the training script itself."""

    determinism: str
    job: dict[str, Value]
    """What is trained on what: number of ESTs, seed, batch size, model, optimizer and its implementation."""
    machine: dict[str, Value]
    """What computes: torch build, device, threads, and the flags that choose kernels."""
    processes: dict[str, Value]
    """Which ESTs run on which process; empty but at level D0, where bits depend on it."""
    code: dict[str, Value] = {}
    """Hashes of the script's code and of its first batches, and plain attributes that its forward passes read. A job goes on
    with the same; two logs may differ in it."""
    around: dict[str, Value] = {}
    """Versions of libraries and attributes of modules, which may change bits or not: differences are told."""

    @property
    def is_uniform(self) -> bool:
        """Whether all ranks compute alike. Those of `hetero-relaxed` on unlike machines drift apart."""
        return not any(isinstance(value, list) for value in self.machine.values())

    def difference(self, other: "Fingerprint") -> Difference | None:
        """The first field that keeps logs of the two from being compared."""
        return (
            different("determinism", {"": self.determinism}, {"": other.determinism})
            or different("job", self.job, other.job)
            or different("machine", self.machine, other.machine)
            or different("processes", self.processes, other.processes)
        )


class Header(msgspec.Struct, frozen=True):
    fingerprint: Fingerprint
    schema: str = SCHEMA


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's type and shape, and the sha256 of these and its bytes; also the name of the file with its values."""

    dtype: str
    shape: tuple[int, ...]
    sha256: Sha256


class StepLine(msgspec.Struct, frozen=True):
    step: int
    epoch: int
    losses: tuple[str, ...]
    """Loss of each EST, as `float.hex()` writes it."""
    skipped: bool
    sha256: Sha256
    """Hash of all `tensors` together."""
    assignment: tuple[tuple[int, ...], ...]
    codec: str
    tensors: dict[str, Digest]
    """Parameters, buffers and the optimizer's state after the step, by name, in the order of the model; and `state`, the
    JSON of what else optimizer, scheduler and loss scaler hold, such as the learning rate."""
    proven: int | None = None
    """The last step whose bits are proven."""
    diverged: int | None = None
    """The first step whose bits have diverged, in a job that went on."""

    def __post_init__(self) -> None:
        for loss in self.losses:
            float.fromhex(loss)  # A loss that is no number fails where the line is read, not where it is compared.


@dataclass(frozen=True)
class StepLog:
    """A step-hash log on disk."""

    path: Path
    fingerprint: Fingerprint

    @classmethod
    def open(cls, path: Path) -> "StepLog":
        """Open the log at `path`. Raises InputError where it cannot be read or is no step log."""
        for number, line in _lines(path):
            header = _decode(path, number, line, Header)
            if header.schema != SCHEMA:
                raise InputError(f"schema {header.schema!r} is not {SCHEMA!r}", path=path, remedy=_NO_LOG_REMEDY)
            return cls(path, header.fingerprint)
        raise InputError("has no header", path=path, remedy=_NO_LOG_REMEDY)

    def steps(self) -> Iterator[StepLine]:
        """The lines of the log, in the order of their steps. Raises InputError for a broken one."""
        before = -1
        for number, text in _lines(self.path):
            if number > 1:
                line = _decode(self.path, number, text, StepLine)
                if line.step <= before:
                    raise InputError(
                        f"line {number}: step {line.step} follows {before}", path=self.path, remedy=_NO_LOG_REMEDY
                    )
                before = line.step
                yield line


def values_path(log: Path, sha256: str) -> Path:
    """Where the values of a tensor with this hash are kept, if they are: one file for each content that there was."""
    return log.with_name(f"{log.name}.values") / f"{sha256}.npy"


def different(where: str, a: Mapping[str, object], b: Mapping[str, object]) -> Difference | None:
    """The first field of `a` and `b` that is not the same in both."""
    for name in {**a, **b}:
        if (name in a, a.get(name)) != (name in b, b.get(name)):
            return Difference(f"{where}.{name}".strip("."), _shown(a, name), _shown(b, name))
    return None


_NO_LOG_REMEDY = "Name a hash_log= that an ElasticTrainer wrote, with the esprof that wrote it."
_Line = TypeVar("_Line")


def _shown(fields: Mapping[str, object], name: str) -> str:
    return str(fields[name]) if name in fields else "absent"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, numbered from 1, without an unfinished last one, as a killed job leaves it."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise unreadable(path, error) from error


def _decode(path: Path, number: int, line: bytes, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise InputError(
            f"line {number} is not a line of a step log: {error}", path=path, remedy=_NO_LOG_REMEDY
        ) from error
