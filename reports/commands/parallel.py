"""The part of `esprof recommend` that splits a model over devices: its options, and its answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import click

from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.mixed.advise import MixedAdvice, advise_mixed
from esprof.analyzers.advisors.parallel.mixed.files import MixedFiles, is_mixed
from esprof.analyzers.advisors.parallel.model import ParallelModel, read_model
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.analyzers.advisors.parallel.recorded.layers import joined_layers, on_types, recorded_layers
from esprof.core.errors import EXIT_OK, InputError, UsageError
from esprof.reports.commands.common import answer, open_run, status, write_advice
from esprof.reports.terminal.advice.mixed import draw_mixed
from esprof.reports.terminal.advice.parallel import draw_parallel


@dataclass(frozen=True)
class SplitOptions:
    """The options of `--only parallel`."""

    batch: int | None
    model: str | None

    def refuse(self, *, is_asked: bool) -> None:
        """Raise UsageError for these options with another advice."""
        if not is_asked and self.batch is not None:
            raise UsageError("--batch needs --only parallel")
        if not is_asked and self.model is not None:
            raise UsageError("--model needs --only parallel")

    def answer(self, sources: Sequence[str], inventory: Path | None, output: Path | None, *, as_json: bool) -> int:
        """Split a model over the devices of an inventory."""
        if inventory is None or self.batch is None:
            raise UsageError("--only parallel needs --inventory and --batch")
        devices = read(inventory, Devices)
        if fault := devices.fault():
            raise InputError(fault, path=inventory)
        if is_mixed(Path(sources[0])):
            mixed = self._mixed([Path(source) for source in sources], devices, self.batch)
            write_advice(mixed, output)
            answer(mixed, draw_mixed, as_json=as_json)
            return EXIT_OK
        if self.model is not None:
            raise UsageError("--model needs times of several models: these are of one")
        model = _model_of(sources, devices)
        with status("Searching"):
            advice = advise_parallel(model, devices, self.batch)
        write_advice(advice, output)
        answer(advice, draw_parallel, as_json=as_json)
        return EXIT_OK

    def _mixed(self, paths: Sequence[Path], devices: Devices, batch: int) -> MixedAdvice:
        files = MixedFiles(paths)
        profile = files.profile(self.model, devices.devices)
        given = tuple(files.given(profile))
        with status("Searching"):
            return advise_mixed(profile, devices, batch, given, files.warnings)


def split_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of `--only parallel` to a command, which gets them as `split`, `SplitOptions`."""

    @click.option(
        "--batch",
        type=click.IntRange(1),
        metavar="N",
        help="With --only parallel: samples of a step on all devices together.",
    )
    @click.option("--model", metavar="NAME", help="With --only parallel: which model, if the profile has several.")
    @wraps(command)
    def with_options(*arguments: object, batch: int | None, model: str | None, **options: object) -> int:
        return command(*arguments, split=SplitOptions(batch, model), **options)

    return with_options


def _model_of(sources: Sequence[str], devices: Devices) -> ParallelModel:
    """The model from files, recordings, or both. Recordings with equal microbatches are on several types of devices.

    Raises UsageError if they do not fit together, or no recorded device is of a type in `devices`.
    """
    runs = [source for source in sources if Path(source).is_dir()]
    recorded: dict[int, list[LayerProfile]] = {}
    for source in runs:
        run, _ = open_run((source,))
        with status("Adding up the layers"):
            profile = recorded_layers(run)
        recorded.setdefault(profile.microbatch, []).append(profile)
    profiles = tuple(on_types(joined_layers(of), devices) for of in recorded.values())
    return read_model([Path(source) for source in sources if source not in runs], profiles)
