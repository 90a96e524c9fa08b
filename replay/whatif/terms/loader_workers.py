"""`loader.workers=4`: another number of loader workers."""

from esprof.replay.whatif.term import Kind, number, refused

TERM = Kind(
    name="loader.workers",
    examples=("loader.workers=4",),
    meaning="DataLoaders use this number of workers.",
    needs="Reads and decoding timed separately. No run records this yet, so the term is always declined.",
    effect=refused("needs reads and decoding of the loader timed separately, which no run records yet"),
    value=number,
)
