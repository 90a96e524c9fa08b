"""The model to split: measured profiles of its layers, a description of a transformer, or both."""

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

import msgspec

from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.parallel.problem import Problem, Recompute
from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType, LayerProfile, matched
from esprof.analyzers.advisors.parallel.published import read_profile
from esprof.analyzers.advisors.parallel.transformer import Transformer
from esprof.core.errors import InputError, UsageError

_REMEDY = "docs/how-to/parallel.md shows the formats."


class ParallelModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model whose times are known: each of its profiles was measured with another microbatch or tensor degree."""

    measured: tuple[LayerProfile, ...] = ()
    transformer: Transformer | None = None
    """Gives the tensor degrees that were not measured."""

    def fault(self) -> str | None:
        """What is wrong with the model; None if nothing is."""
        if not self.measured and self.transformer is None:
            return "neither a profile nor a description is given"
        seen = [(one.microbatch, one.tensor) for one in self.measured]
        for microbatch, tensor in seen:
            if seen.count((microbatch, tensor)) > 1:
                return f"two profiles have the microbatch {microbatch} and the tensor degree {tensor}"
        return None


class _SchemaOnly(msgspec.Struct):
    schema: str = ""


def read_model(paths: Sequence[Path], recorded: Sequence[LayerProfile] = ()) -> ParallelModel:
    """Read files of measured profiles, and at most one description of a transformer. `recorded` are further profiles.

    Raises InputError with the place of a fault, UsageError if the files do not fit together.
    """
    measured, described = list(recorded), list[Transformer]()
    for path in paths:
        if path.suffix != ".txt" and read(path, _SchemaOnly).schema.startswith("esprof.transformer/"):
            described.append(_read_transformer(path))
        else:
            measured.append(read_profile(path))
    if len(described) > 1:
        raise UsageError("two files describe a transformer", remedy="Give one description, and profiles of its layers.")
    model = ParallelModel(measured=tuple(measured), transformer=described[0] if described else None)
    if fault := model.fault():
        raise UsageError(fault, remedy="Give one file for each microbatch and tensor degree.")
    return model


def _read_transformer(path: Path) -> Transformer:
    transformer = read(path, Transformer, "docs/how-to/parallel.md")
    if fault := transformer.fault():
        raise InputError(fault, path=path, remedy=_REMEDY)
    return transformer


class ModelProblems:
    """The problems of a model on some devices: one for each microbatch, tensor degree and kind of recomputation.

    Raises UsageError if a profile has no time on a type of device, or no server has enough devices for its tensor degree.
    """

    def __init__(self, model: ParallelModel, devices: Devices, batch: int) -> None:
        self.warnings = list(dict.fromkeys(note for profile in model.measured for note in profile.notes))
        self.measured = list[Problem]()
        self.computed = list[Problem]()
        # Without a limit of memory, nothing is gained by computing anything twice.
        limited = any(isfinite(devices.memory_bytes(kind)) for kind in devices.devices)
        self._recompute = tuple(Recompute) if limited else (Recompute.NONE,)
        for profile in model.measured:
            grouped = devices.grouped(profile.tensor)
            if grouped is None:
                raise UsageError(
                    f"no server has the {profile.tensor} devices that share each layer in a profile",
                    remedy="Set per_server in the inventory, or leave this profile out.",
                )
            self.measured += self._problems(matched(profile, grouped), grouped, batch)
        if model.transformer is not None:
            self._compute(model.transformer, model.measured, devices, batch)

    def _problems(
        self, profile: LayerProfile, devices: Devices, batch: int, is_split: bool | None = None
    ) -> Iterator[Problem]:
        for recompute in self._recompute:
            yield Problem.of(profile, devices, max(1, batch // profile.microbatch), recompute, is_split)

    def _compute(
        self, transformer: Transformer, measured: Sequence[LayerProfile], devices: Devices, batch: int
    ) -> None:
        """Add the problems with the tensor degrees that were not measured."""
        us_per_byte = devices.us_per_byte_in_server()
        known = {kind: self._tflops(transformer, measured, kind, us_per_byte) for kind in devices.devices}
        microbatches = sorted({one.microbatch for one in measured}) or [transformer.microbatch]
        for tensor in transformer.tensor_degrees(devices.per_server):
            grouped = devices.grouped(tensor)
            for microbatch in microbatches:
                if grouped is None or any((one.microbatch, one.tensor) == (microbatch, tensor) for one in measured):
                    continue
                speeds = {kind: known[kind] for kind in grouped.devices}
                for is_split in (False, True):
                    profile = transformer.profile(microbatch, tensor, speeds, us_per_byte, is_split=is_split)
                    self.computed += self._problems(profile, grouped, batch, is_split)
        if self.computed:
            on_each = ", ".join(f"{speed:.4g} on {kind}" for kind, speed in known.items())
            self.warnings.append(f"not measured, but computed: times of layers at {on_each} (TFLOP/s)")

    def _tflops(
        self, transformer: Transformer, measured: Sequence[LayerProfile], kind: DeviceType, us_per_byte: float
    ) -> float:
        """The speed of a type of device: measured, or else as described."""
        found = transformer.measured_tflops(measured, kind, us_per_byte)
        if found is None and (found := transformer.tflops.get(kind)) is None:
            raise UsageError(
                f"the speed of {kind} is unknown",
                remedy=f"Add `tflops: {{{kind}: …}}` to the description, or give a profile of the layers on {kind}.",
            )
        return found
