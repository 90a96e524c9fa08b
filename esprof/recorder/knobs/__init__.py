"""Settings of a job that esprof can change without editing its code: one module per knob, and the table of all knobs.

Like `injected`, this package runs as a guest in the job's own processes. It imports only the standard library, `shared` and
torch, and torch only inside functions, so that the command line can read the table. `compress` needs esprof in the
job's Python.
"""

from . import bucket_mb, cache, compile_mode, compress, data, loaders, network_cc, threads
from .knob import Knob, KnobState

__all__ = ["KNOBS", "Knob", "KnobState"]

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        bucket_mb.KNOB,
        cache.KNOB,
        compile_mode.KNOB,
        compress.KNOB,
        data.KNOB,
        loaders.IN_ORDER,
        loaders.PREFETCH,
        loaders.WORKERS,
        network_cc.KNOB,
        threads.KNOB,
    )
}
"""Name -> knob. A knob of a what-if term is named like the term, without its equal sign and value."""
