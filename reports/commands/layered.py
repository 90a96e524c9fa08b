"""The part of `esprof recommend --only parallel` that reads the model."""

from collections.abc import Sequence
from pathlib import Path

from esprof.analyzers.advisors.parallel.model import ParallelModel, read_model
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.analyzers.advisors.parallel.recorded.layers import joined_layers, on_types, recorded_layers
from esprof.reports.commands.common import open_run, status


def model_of(sources: Sequence[str], devices: Devices) -> ParallelModel:
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
