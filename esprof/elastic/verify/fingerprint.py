"""What a job's bits depend on besides its training script: pinned, the same on all ranks, and written down.

Three levels say what is promised of the bits:

- `D0`: the same processes on the same devices, with the same ESTs each, get the same bits again. Any reduction will do.
- `D1`: so do any processes with any assignment, resumed ones too, on devices of one type. This is the default.
- `hetero-relaxed`: devices may be of several types. Every EST sees the same batches and random numbers, and sums have
the
  same order; but kernels differ between device types, and the bits with them. Nothing is promised of bits.

There is no level for equal bits on different types of device: public torch cannot pin its kernels across them.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from esprof.core import readable
from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.data.threads import blas_threads
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.steplog import Difference, Fingerprint, Scalar, Value, different
from esprof.recorder.shared.identity import cpu_model
from esprof.recorder.shared.torch_features import precision_settings

Level = Literal["D0", "D1", "hetero-relaxed"]

FIRST_BATCHES = "the first batches"
"""Name of their hash in the `code` of a fingerprint."""

_RELAXED_REMEDY = (
    "or pass Proof(determinism='hetero-relaxed'), which promises the same batches and order of sums but no equal bits."
)
_KERNEL_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
_SAME_SCRIPT_REMEDY = "Let every rank build the same model, optimizer, dataset and ElasticTrainer."
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_HASH = re.compile("[0-9a-f]{16}")
_IMPLEMENTATION_OPTIONS = ("foreach", "fused", "capturable", "differentiable")


def pin(optimizers: Sequence[Optimizer], device: torch.device) -> None:
    """Make kernels deterministic in this process, and write torch's choice of the optimizers' implementation down.

    Kernels that have no deterministic form raise RuntimeError from then on, as `use_deterministic_algorithms` has it.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Where a kernel has run before, torch says so.
    torch.use_deterministic_algorithms(True)
    # Filling new memory finds reads of what was never written; it changes no result, and costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    for group in [group for optimizer in optimizers for group in optimizer.param_groups]:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            _, group["foreach"] = _default_to_fused_or_foreach(group["params"], group.get("differentiable", False))
        if "fused" in group and group["fused"] is None:
            group["fused"] = False


def agree(
    level: Level,
    transport: Transport,
    job: dict[str, Value],
    machine: dict[str, Scalar],
    terms: Mapping[str, object],
    assignment: str,
) -> Fingerprint:
    """The job's fingerprint, made of those of all ranks.

    `terms` must be the same on all ranks, too, but may change when the job goes on, so they are no part of the
    fingerprint. Raises MismatchError where the ranks train different things, or at D1 where they compute on different
    machines.
    """
    require_alike(transport, "job", job, _SAME_SCRIPT_REMEDY)
    require_alike(transport, "terms", terms, _SAME_SCRIPT_REMEDY)
    machines = gather_values(transport, machine)
    if level == "D1":
        _check_alike("machine", machines, f"Make them equal, {_RELAXED_REMEDY}")
    processes: dict[str, Value] = {"assignment": assignment} if level == "D0" else {}
    return Fingerprint(level, job, {name: _joined([other[name] for other in machines]) for name in machine}, processes)


def check_unchanged(settings: Mapping[str, Scalar], level: str) -> None:
    """Raise UsageError where `settings`, an earlier `kernel_settings()`, no longer hold and `level` promises bits."""
    found = different("machine", settings, kernel_settings())
    if found and level != "hetero-relaxed":
        raise UsageError(
            f"{found.field} was {found.a} when the trainer was made and is {found.b} now",
            remedy=f"Set it before the trainer is made, {_RELAXED_REMEDY}",
        )


def require_alike(transport: Transport, where: str, fields: Mapping[str, object], remedy: str) -> None:
    """Raise MismatchError on all ranks for the first of the fields that is not the same on all of them."""
    _check_alike(where, gather_values(transport, fields), remedy)


def check_same_job(saved: Fingerprint, now: Fingerprint, path: Path) -> None:
    """Raise MismatchError where the job `now` could not go on from a checkpoint of `saved` with the promised bits."""
    found = different("job", saved.job, now.job)
    if found:
        raise _other_job(found, path, "Restore these settings, or start a new job in another folder.")
    if now.determinism != "hetero-relaxed":
        known = saved.machine.keys()  # Of a checkpoint by an earlier esprof, which may have noted less.
        found = different("machine", saved.machine, {name: now.machine[name] for name in now.machine if name in known})
        if found:
            raise _other_job(found, path, f"Go on where it was saved, {_RELAXED_REMEDY}")
    if now.determinism == "D0":
        found = different("processes", saved.processes, now.processes)
        if found:
            raise _other_job(found, path, "At D0 a job goes on with the processes that it had; D1 lets them change.")


def check_same_script(saved: Fingerprint, now: Fingerprint, path: Path, *, new_script: bool) -> list[str]:
    """What differs between the scripts of a checkpoint and of the job `now`, a sentence each. Raises MismatchError for other
    code or data where the level promises bits, unless they are meant to be other ones (`new_script`).

    Only what both have is compared; hashes of code are of one version of Python.
    """
    is_comparable = saved.around.get("python") == now.around.get("python")
    code = [name for name, value in saved.code.items() if now.code.get(name, value) != value]
    changed = [name for name in code if is_comparable or name == FIRST_BATCHES]
    if changed and now.determinism != "hetero-relaxed" and not new_script:
        names = readable.listed([_shown(saved, now, name) for name in changed], most=3)
        raise MismatchError(
            f"was trained by another script: changed since are {names}",
            path=path,
            remedy="Go on with the script of the checkpoint; or, if the change is meant, pass Checkpoint(new_script=True).",
        )
    found = [f"{_shown(saved, now, name)} has changed" for name in changed]
    around = saved.around.items()
    return found + [
        f"{name} was {was} and is {now.around[name]}" for name, was in around if now.around.get(name, was) != was
    ]


def _shown(saved: Fingerprint, now: Fingerprint, name: str) -> str:
    """A name in `code`, with the values that are no hashes."""
    was, value = saved.code[name], now.code[name]
    return name if _HASH.fullmatch(f"{was}") and _HASH.fullmatch(f"{value}") else f"{name} ({was}, now {value})"


def model_fields(model: nn.Module) -> dict[str, Value]:
    """Type and shape of each parameter and buffer, and whether it is frozen; and what each module says of itself."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors: dict[str, Value] = {
        f"model.{name}": f"{str(tensor.dtype)[6:]} {list(tensor.shape)}{' frozen' * (name in frozen)}"
        for name, tensor in named
    }
    # Modules of one shape may compute something else: another activation, another rate of dropout.
    return tensors | {f"module.{name}".removesuffix("."): _said(module) for name, module in model.named_modules()}


def optimizer_fields(optimizers: Sequence[Optimizer]) -> dict[str, Value]:
    """Each optimizer's class and, as far as its groups of parameters tell, how it is implemented (`foreach`, `fused`,
    …)."""
    fields: dict[str, Value] = {}
    for called, optimizer in _named(optimizers).items():
        kind = type(optimizer)
        fields[called] = f"{kind.__module__}.{kind.__qualname__}"
        for name in _IMPLEMENTATION_OPTIONS:
            values = [bool(group[name]) for group in optimizer.param_groups if name in group]
            if values:
                fields[f"{called}.{name}"] = _joined(values)
    return fields


def group_fields(optimizers: Sequence[Optimizer]) -> dict[str, object]:
    """The settings of each group of parameters: learning rate, momentum and the like."""
    return {
        f"{called}.{index}.{name}": plain(value)
        for called, optimizer in _named(optimizers).items()
        for index, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }


def _named(optimizers: Sequence[Optimizer]) -> dict[str, Optimizer]:
    names = ["optimizer"] if len(optimizers) == 1 else [f"optimizer {index}" for index in range(len(optimizers))]
    return dict(zip(names, optimizers, strict=True))


def plain(value: object) -> object:
    """What JSON can hold of a value; of an object of which it can hold nothing, the type's name."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case torch.Tensor():
            return value.tolist()
    return type(value).__name__


def machine_fields(device: torch.device) -> dict[str, Scalar]:
    """What this process computes with."""
    backends: Any = torch.backends  # Made at run time: a type checker sees little of it.
    return {
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "cudnn": backends.cudnn.version() if device.type == "cuda" else None,
        "device": device.type,
        "device_name": _device_name(device),
        "cpu_capability": backends.cpu.get_cpu_capability(),
        **{name: os.environ.get(name) for name in _KERNEL_VARIABLES},
        **kernel_settings(),
    }


def kernel_settings() -> dict[str, Scalar]:
    """Those of the `machine_fields` that a script can change between two steps."""
    backends: Any = torch.backends
    cuda = backends.cuda
    return {
        "threads": torch.get_num_threads(),
        "blas_threads": blas_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn_deterministic": backends.cudnn.deterministic,
        "cudnn_benchmark": backends.cudnn.benchmark,
        "cuda_matmul_fp16_reduction": str(cuda.matmul.allow_fp16_reduced_precision_reduction),
        "cuda_matmul_bf16_reduction": str(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "cuda_blas": cuda.preferred_blas_library().name,
        "cuda_linalg": cuda.preferred_linalg_library().name,
        "sdp_flash": cuda.flash_sdp_enabled(),
        "sdp_mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "sdp_math": cuda.math_sdp_enabled(),
        "sdp_cudnn": cuda.cudnn_sdp_enabled(),
        "sdp_math_reduction": cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "mkldnn": backends.mkldnn.enabled,
        **precision_settings(),
    }


def _said(module: nn.Module) -> str:
    """A module's class and settings, as far as its `extra_repr` tells them, without addresses in memory."""
    settings = _ADDRESS.sub("", module.extra_repr())
    return f"{type(module).__qualname__}({' '.join(settings.split())})"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return f"{found.name} ({found.major}.{found.minor}, {found.multi_processor_count} multiprocessors)"
    return cpu_model()


def _joined(values: Sequence[Scalar]) -> Value:
    """The value of all ranks, or each rank's where they differ."""
    return values[0] if all(value == values[0] for value in values) else list(values)


def _check_alike(where: str, ranks: Sequence[Mapping[str, object]], remedy: str) -> None:
    for rank, fields in enumerate(ranks):
        found = different(where, ranks[0], fields)
        if found:
            raise MismatchError(f"{found.field} is {found.a} on rank 0 and {found.b} on rank {rank}", remedy=remedy)


def _other_job(found: Difference, path: Path, remedy: str) -> MismatchError:
    return MismatchError(
        f"belongs to another job: {found.field} is {found.a} there and {found.b} here", path=path, remedy=remedy
    )
