"""What esprof can change in a job without a change of its code: a file for each knob, and the table of them all.

Like `injected` it runs in the job's own processes, as a guest. It imports the standard library and torch alone, and torch
only in functions, so that the command line can read the table; `compress` needs esprof where the job runs.
"""

from . import bucket_mb, compress, data, loaders, threads
from .knob import Knob, KnobState

__all__ = ["KNOBS", "Knob", "KnobState"]

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (bucket_mb.KNOB, compress.KNOB, data.KNOB, loaders.WORKERS, loaders.PREFETCH, threads.KNOB)
}
"""Name -> knob. That of a what-if term is named as the term is written before the equal sign."""
