"""`threads=`: number of threads that an operation on the CPU may use."""

from .knob import Knob, KnobState, Reader, count


def _install(value: str | None) -> Reader:
    import torch

    if value is not None:
        torch.set_num_threads(int(value))
    return lambda: KnobState(str(torch.get_num_threads()))


KNOB = Knob(
    name="threads",
    is_term=False,
    example="2",
    sets="`torch.set_num_threads` in each process that imports torch, before the job's own code continues",
    reads="`torch.get_num_threads`",
    spelled=count(1),
    install=_install,
)
