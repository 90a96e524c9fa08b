"""Codecs: how fast gradients on the device are encoded and decoded, by size, beside a plain copy on the device."""

import torch

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.timing import copy_gb_s, seconds
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.compress.codecs.registry import codec

GB = 1e9
MB = 1 << 20
CODECS = ("fp16", "bf16", "topk:0.1", "topk:0.01")


def measure(kit: Kit) -> None:
    for megabytes in kit.pick(cuda=(0.25, 1, 4, 16, 64, 256), cpu=(0.25, 1)):
        gradient = torch.randn(int(megabytes * MB) // 4, device=kit.device)
        kit.show("device_copy", copy_gb_s(kit, gradient.nbytes), "GB/s read, and as much written", mb=megabytes)
        for spec in CODECS:
            show_codec(kit, spec, gradient)


def show_codec(kit: Kit, spec: str, gradient: torch.Tensor) -> None:
    made, state, out = codec(spec), State(), torch.empty_like(gradient)
    assert made is not None
    wire = made.encode(gradient, state)
    about = {"codec": spec, "mb": gradient.nbytes / MB, "wire_mb": wire.nbytes / MB}
    for name, action in (
        ("encode", lambda: made.encode(gradient, state)),
        ("decode", lambda: made.decode(wire, out)),
    ):
        rates = [gradient.nbytes / GB / took for took in seconds(kit, action)]
        kit.show(name, rates, "GB/s of gradient", **about)
