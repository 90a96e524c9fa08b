"""Traces of LLM servers made by hand, in the form that SGLang and vLLM profile: a step is one forward pass, with its decode
layers in a CUDA graph; work is queued a step ahead, and the host waits for the sampled tokens. Times are microseconds."""

from tests.cases.kineto import kernel, launch, row

SAMPLE = 400
"""Time of sampling and of the copy of its tokens, after the graph."""

SGLANG, VLLM = "step[DECODE bs=16]", "execute_context_0(0)_generation_16(16)"
"""Annotations of a step by SGLang's ModelRunner.forward and vLLM's Worker.execute_model."""


def decode(
    steps: int,
    *,
    name: str | None = SGLANG,
    layers: int = 32,
    layer: float = 200,
    host: float = 1_500,
    ahead: bool = True,
) -> list[dict]:
    """`steps` decode steps of one rank, each `layers` layers of three kernels (`layer` µs) and sampling.

    With `ahead`, the loop launches a step while the one before runs and then waits for the tokens of that one. The window
    then begins while the GPU computes a step that was launched before, whose kernels the profiler did not record.
    """
    took = layers * layer + SAMPLE
    rows, free = [], took if ahead else 0.0
    begin = 0.0
    for number in range(steps):
        call = 1_000 * (number + 1)
        start = max(free, begin + 230)
        rows += _forward(begin, start, call, name, layers, layer)
        ended = free if ahead else start + took
        free = start + took
        waited = begin + 800
        until = max(ended + 15, waited + 10)
        rows.append(row("cudaEventSynchronize", waited, until - waited, cat="cuda_runtime", correlation=call + 900))
        rows.append(row("aten::tolist", until, 50))
        begin = until + host - 800
    return rows


def _forward(begin: float, start: float, call: int, name: str | None, layers: int, layer: float) -> list[dict]:
    """One step whose launches begin at `begin` and whose GPU work begins at `start`."""
    rows = [
        row("aten::copy_", begin + 20, 60),
        launch(begin + 30, call, name="cudaMemcpyAsync"),
        row(
            "Memcpy HtoD (Pinned -> Device)",
            start,
            2,
            cat="gpu_memcpy",
            pid=0,
            tid=7,
            device=0,
            stream=7,
            correlation=call,
        ),
        launch(begin + 200, call + 1, name="cudaGraphLaunch", dur=300),
        row("aten::argmax", begin + 520, 40),
        launch(begin + 530, call + 2),
        row("aten::copy_", begin + 570, 40),
        launch(begin + 580, call + 3, name="cudaMemcpyAsync"),
        launch(begin + 600, call + 4, name="cudaEventRecord", dur=2),
    ]
    if name is not None:
        rows.append(row(name, begin + 10, 490, cat="user_annotation"))
        rows.append(row(name, start, layers * layer, cat="gpu_user_annotation", pid=0, tid=7, **{"External id": call}))
    at = start + 5
    for number in range(layers):
        for kernel_name, share in (("qkv_gemm", 0.3), ("flash_fwd_splitkv", 0.2), ("mlp_gemm", 0.5)):
            took = layer * share - (5 if number == 0 and share == 0.3 else 0)
            rows.append(kernel(at, call + 1, name=kernel_name, dur=took))
            at += took
    rows.append(kernel(at, call + 2, name="argmax", dur=SAMPLE - 5))
    rows.append(
        row(
            "Memcpy DtoH (Device -> Pinned)",
            at + SAMPLE - 4,
            3,
            cat="gpu_memcpy",
            pid=0,
            tid=7,
            device=0,
            stream=7,
            correlation=call + 3,
        )
    )
    return rows
