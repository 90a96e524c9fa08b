"""The layers of a recorded model, as the input of the search for a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType, Layer, LayerProfile, PassTimes
from esprof.analyzers.advisors.parallel.recorded.chain import Chain, LayerModules, ModuleSize, Sizes, obstacle
from esprof.analyzers.advisors.parallel.recorded.times import LayerTimes, RankModules
from esprof.analyzers.ops.calls import SteadyTime
from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.types import Rank, us
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.replay.whatif.memory.blocks import Use, rank_blocks
from esprof.replay.whatif.scenario import Declined
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.run import Run

MIN_COVERED_SHARE = 0.9
"""Least share of the time of forward and backward passes that the layers must have: a plan divides nothing else."""


@dataclass(frozen=True)
class _Layers:
    """The layers of a model, and their times on one rank."""

    root: str
    chain: Chain
    times: LayerTimes
    outputs: tuple[int, ...]
    """Bytes of the output of each layer."""


def recorded_layers(run: Run) -> LayerProfile:
    """The layers of the model that each rank of `run` trains, with their times on each type of device.

    Raises InputError if the model is no chain of modules, they take less than MIN_COVERED_SHARE of the time of forward and
    backward passes, or their sizes or calls were not recorded.
    """
    steps = steps_of(run)
    found = {rank: _of_rank(steps, rank) for rank in steps.run.ranks}
    first = next(iter(found.values()))
    for rank, one in found.items():
        if one.chain.parts != first.chain.parts:
            raise _declined(run, f"the modules of rank {rank} differ from those of rank {min(found)}")
    types: dict[DeviceType, list[LayerTimes]] = {}
    for rank, one in found.items():
        types.setdefault(run.rank(rank).device or f"rank {rank}", []).append(one.times)
    times = {kind: _passes(of) for kind, of in types.items()}
    share = 100 * min(one.times.covered_share for one in found.values())
    kept, microbatch = _kept(steps, min(found), first.times), _samples(steps, min(found), first.times)
    notes = [f"the layers have {share:.0f} % of the recorded time of forward and backward passes"]
    if kept is None:
        notes.append(
            "activations in layers are unknown, and states of the optimizer taken as Adam's: record with --memory"
        )
    if microbatch is None:
        notes.append("the number of samples is unknown: --batch counts microbatches as recorded")
    if first.chain.shared_bytes:
        shared = readable.size(first.chain.shared_bytes)
        notes.append(f"{shared} of parameters belong to several layers, and count in each")
    layers = tuple(
        Layer(
            name=_named(part),
            times={kind: of_layers[at] for kind, of_layers in times.items()},
            output_bytes=first.outputs[at],
            parameter_bytes=part.parameter_bytes,
            kept_bytes=None if kept is None else kept[at],
        )
        for at, part in enumerate(first.chain.parts)
    )
    profile = LayerProfile(layers=layers, microbatch=microbatch or 1, notes=tuple(notes))
    model = run.rank(min(found)).model
    if model is None or not model.parameters:
        return profile
    optimizer = round(model.optimizer / model.parameters, 3)
    # Weights, gradients of the same size, and what the optimizer has.
    return msgspec.structs.replace(profile, state_factor=2 + optimizer, optimizer_factor=optimizer)


def joined_layers(profiles: Sequence[LayerProfile]) -> LayerProfile:
    """One profile from those of the same model on several types of devices. Raises UsageError if their layers differ."""
    first, *others = profiles
    for other in others:
        if _shape(other) != _shape(first):
            raise UsageError("the runs have different layers", remedy="Record the same model with the same microbatch.")
    times: dict[str, dict[DeviceType, PassTimes]] = {}
    for profile in profiles:
        for layer in profile.layers:
            times[layer.name] = layer.times | times.get(layer.name, {})
    layers = (msgspec.structs.replace(layer, times=times[layer.name]) for layer in first.layers)
    notes = dict.fromkeys(note for profile in profiles for note in profile.notes)
    return msgspec.structs.replace(first, layers=tuple(layers), notes=tuple(notes))


def on_types(profile: LayerProfile, devices: Devices) -> LayerProfile:
    """The profile with the types of an inventory: each is a part of the name of one recorded device.

    Raises UsageError if no recorded device has such a name, or several have.
    """
    recorded = sorted({kind for layer in profile.layers for kind in layer.times})
    names = dict[DeviceType, DeviceType]()
    for kind in devices.devices:
        like = [name for name in recorded if name == kind] or [name for name in recorded if kind in name]
        if len(like) != 1:
            what = "of several recorded devices" if like else "of no recorded device"
            raise UsageError(
                f"{kind} is part of the name {what}: {', '.join(recorded)}",
                remedy="Name recorded devices in the inventory, or add a run of the model on this device.",
            )
        names[kind] = like[0]
    layers = (
        msgspec.structs.replace(layer, times={kind: layer.times[name] for kind, name in names.items()})
        for layer in profile.layers
    )
    return msgspec.structs.replace(profile, layers=tuple(layers))


def _of_rank(steps: RecordedSteps, rank: Rank) -> _Layers:
    run, sizes = steps.run, _sizes(steps.run, rank)
    steady = SteadyTime([steps.boundaries[rank][step] for step in steps.steady])
    modules = RankModules(run.events(rank), steady, is_window=run.unit == "window")
    root = modules.root()
    if not sizes or root is None or root.name not in sizes:
        raise InputError(
            "sizes of modules were not recorded",
            path=run.path,
            remedy="Record the job by `esprof record`, without torch.compile, or write a file of layers.",
        )
    if (name := modules.exchange()) is not None or run.events(rank).ints("is_p2p", 0).any():
        raise _declined(run, f"its ranks each have a part of the model only ({name or 'send and recv'})")
    chain = Chain(root, sizes)
    if len(chain.parts) < 2:
        raise _declined(run, f"the model is no chain of modules: {obstacle(root, sizes)}")
    lasts = [part.names[-1] for part in chain.parts]
    ignored = frozenset(name for name, size in sizes.items() if not size.parameter_bytes)
    times = modules.times(root.name, lasts, ignored)
    if times is None:
        raise _declined(run, "no forward pass has all modules of the first, and a backward pass")
    if times.covered_share < MIN_COVERED_SHARE:
        share = f"{100 * times.covered_share:.0f} %"
        raise _declined(run, f"the modules of {root.name} take {share} of the time of forward and backward passes only")
    return _Layers(root.name, chain, times, tuple(sizes[name].output_bytes for name in lasts))


def _declined(run: Run, reason: str) -> InputError:
    return InputError(
        reason, path=run.path, remedy="Write the layers to a file: docs/how-to/parallel.md shows the format."
    )


def _sizes(run: Run, rank: Rank) -> Sizes:
    rows = run.modules(rank)
    sizes = (rows.ints(name).tolist() for name in ("own_bytes", "parameter_bytes", "output_bytes"))
    found = zip(rows.texts("name"), *sizes, rows.texts("inputs"), rows.texts("outputs"), strict=True)
    return {
        _plain(name): ModuleSize(
            own_bytes=own, parameter_bytes=all_, output_bytes=output, inputs=_names(inputs), outputs=_names(outputs)
        )
        for name, own, all_, output, inputs, outputs in found
    }


def _names(lines: str | None) -> frozenset[str] | None:
    return None if lines is None else frozenset(map(_plain, lines.splitlines()))


def _plain(name: str) -> str:
    return name.removeprefix(MODULE_PREFIX)


def _named(part: LayerModules) -> str:
    return part.names[0] if len(part.names) == 1 else f"{part.names[0]} to {part.names[-1]}"


def _passes(ranks: Sequence[LayerTimes]) -> list[PassTimes]:
    """Times of each layer: the median microbatch, the mean of ranks."""

    def middle(of: Sequence[np.ndarray]) -> np.ndarray:
        mean: np.ndarray = np.mean([np.median(times, axis=0) for times in of], axis=0)
        return mean

    for_weights = [one.weights_ns for one in ranks if one.weights_ns is not None]
    forward, backward = middle([one.forward_ns for one in ranks]), middle([one.backward_ns for one in ranks])
    weights = middle(for_weights) if len(for_weights) == len(ranks) else [None] * len(forward)
    return [
        PassTimes(forward_us=us(f), backward_us=us(b), weights_us=None if w is None else us(w))
        for f, b, w in zip(forward, backward, weights, strict=True)
    ]


def _kept(steps: RecordedSteps, rank: Rank, times: LayerTimes) -> list[int] | None:
    """Bytes that each layer keeps for the backward pass in the median microbatch; None if that was not recorded."""
    try:
        blocks = rank_blocks(steps.run, rank, tuple(steps.all)).blocks
    except Declined:
        return None
    mine = blocks.use == Use.ACTIVATION
    layers = times.bounds_ns.shape[1] - 1
    at = np.searchsorted(times.bounds_ns.ravel(), blocks.begin_ns[mine], side="right") - 1
    inside = (at >= 0) & (at % (layers + 1) < layers)
    slot = (at - at // (layers + 1))[inside]
    size = np.bincount(slot, weights=blocks.bytes[mine][inside], minlength=len(times.bounds_ns) * layers)
    kept: list[int] = np.rint(np.median(size.reshape(-1, layers), axis=0)).astype(int).tolist()
    return kept


def _samples(steps: RecordedSteps, rank: Rank, times: LayerTimes) -> int | None:
    """Samples of a microbatch; None if that is unknown, or differs."""
    rows = steps.run.steps(rank)
    samples = rows.ints("samples")[np.isin(rows.ints("step"), steps.steady)]
    if not len(samples) or samples.min() <= 0 or samples.sum() % len(times.bounds_ns):
        return None
    return int(samples.sum()) // len(times.bounds_ns)


def _shape(profile: LayerProfile) -> tuple[object, ...]:
    sizes = tuple((layer.name, layer.output_bytes, layer.parameter_bytes) for layer in profile.layers)
    return (profile.microbatch, *sizes)
