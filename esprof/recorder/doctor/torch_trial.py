"""Trials of torch, run as `python -m esprof.recorder.doctor.torch_trial RANK FOLDER` by two processes at once.

Rank 0 prints a `HealthCheck` as a line of JSON as soon as it knows it, so that a trial which hangs hides no earlier one.
"""

import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from esprof.recorder.doctor.health import HealthCheck, fail, ok, warn

MIN_TORCH, MAX_TORCH = (2, 6), (2, 15)
"""Oldest and newest minor version that docs/reference/compatibility.md has seen."""
RANKS = 2
GLOO_WAIT = timedelta(seconds=6)
_SIZE = 64


def check_version(version: str) -> HealthCheck:
    """`version` is that of torch, such as `2.13.0+cpu`."""
    seen = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    tested = f"{MIN_TORCH[0]}.{MIN_TORCH[1]} to {MAX_TORCH[0]}.{MAX_TORCH[1]}"
    means = f"Recording is tested with torch {tested}."
    if seen < MIN_TORCH:
        return fail("torch", version, means, f"Install torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer.")
    if seen > MAX_TORCH:
        return warn(
            "torch", version, means, "If `esprof record` reports what this version lacks (ESP904), update esprof."
        )
    return ok("torch", version, means)


def check_profiler(torch: Any) -> HealthCheck:
    """Whether torch.profiler records an operation and, with a GPU, its kernel."""
    has_gpu = torch.cuda.is_available()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if has_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    means = "Windows are recorded by torch.profiler (Kineto)."
    with torch.profiler.profile(activities=activities) as profile:
        matrix = torch.ones(_SIZE, _SIZE, device="cuda" if has_gpu else "cpu")
        (matrix @ matrix).sum().item()
    events = profile.events()
    if not any(event.name == "aten::mm" for event in events):
        return fail("profiler", "it records no operation", means, "Install a build of torch with Kineto.")
    if has_gpu and not any(event.device_type == torch.autograd.DeviceType.CUDA for event in events):
        remedy = "Check CUPTI: other profilers on the device, or a container without the capability."
        return fail("profiler", "it records operations, but no kernel of the GPU", means, remedy)
    return ok("profiler", f"it records operations{' and kernels' * has_gpu}", means)


def check_devices(torch: Any, has_driver: bool) -> HealthCheck:
    means = "Jobs on GPUs need them; jobs on CPUs do not."
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        found = f"{count} of {torch.cuda.get_device_name(0)}; CUDA {torch.version.cuda or torch.version.hip}"
        return ok("GPUs", found, means)
    if has_driver:
        remedy = "Install a build of torch for CUDA, or check CUDA_VISIBLE_DEVICES."
        return warn("GPUs", "this host has an NVIDIA driver, but torch sees no GPU", means, remedy)
    return ok("GPUs", "none", means)


def check_flight_recorder() -> HealthCheck:
    from esprof.recorder.shared.torch_features import flight_dumps

    means = "At a hang, PyTorch's Flight Recorder tells which rank lacks in which collective."
    if not flight_dumps():
        return warn("Flight Recorder", "this torch has none", means, "Install a build of torch with distributed.")
    return ok("Flight Recorder", "available", means)


def gloo_sum(rank: int, folder: Path) -> float:
    """The sum of 1 + 2 over a gloo group of two processes, which meet in `folder`."""
    import torch
    import torch.distributed as dist

    meeting = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=GLOO_WAIT)
    found = torch.tensor([float(rank + 1)])
    dist.all_reduce(found)
    dist.destroy_process_group()
    return float(found.item())


def check_gloo(folder: Path) -> HealthCheck:
    means = "Process groups on CPUs use gloo. A group of two processes was started on this host."
    remedy = "Set GLOO_SOCKET_IFNAME to an interface that is up, such as lo or eth0."
    try:
        total = gloo_sum(0, folder)
    except Exception as error:  # noqa: BLE001  whatever gloo raises is the answer
        return fail("gloo", f"the group fails: {str(error).splitlines()[0]}", means, remedy)
    if total != sum(range(1, RANKS + 1)):
        return fail("gloo", f"an all-reduce of 1 and 2 gives {total:g}", means, remedy)
    return ok("gloo", "two processes add up numbers", means)


def main(rank: int, folder: Path) -> None:
    if find_spec("torch") is None:
        means = "Recording needs torch; reading, replay and reports do not."
        return _say(warn("torch", "not installed in this environment", means, 'pip install "esprof[torch]"'))
    try:
        import torch
    except (ImportError, OSError) as error:
        means = "Recording needs torch."
        return _say(fail("torch", f"cannot be imported: {error}", means, "Install torch again."))
    if rank:
        gloo_sum(rank, folder)
        return None
    _say(check_version(str(torch.__version__)))
    _say(check_devices(torch, Path("/proc/driver/nvidia").exists()))
    _say(check_profiler(torch))
    _say(check_flight_recorder())
    return _say(check_gloo(folder))


def _say(check: HealthCheck) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(check) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
