"""`loader.shared=2`: jobs of one host that prepare each sample once."""

from esprof.replay.whatif.loading.batches import RecordedBatches
from esprof.replay.whatif.term import Kind, Loading, Term, whole

_MAX_JOBS = 64


def _shared(batches: RecordedBatches, term: Term) -> RecordedBatches:
    return batches.shared_by(int(term.value))


TERM = Kind(
    name="loader.shared",
    examples=("loader.shared=2",),
    meaning="This number of equal jobs on a host, which read the same data, share its preparation "
    "(`esprof.data.SharedPreparation`; CoorDL, VLDB 2021, section 4.3): each prepares its part of the samples, and gets the "
    "others ready to be collated.",
    needs="As `loader.workers`.",
    assumes="The run was recorded while the jobs ran side by side. They are equally fast. A prepared sample is fetched in "
    "no time. Each of J jobs waits at the end of a batch for (J - 1) / 2J of the time to prepare a sample.",
    effect=Loading(_shared),
    value=whole(2, _MAX_JOBS),
    scoped=True,
)
