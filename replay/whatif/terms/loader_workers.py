"""`loader.workers=4`: another number of loader workers."""

from esprof.replay.whatif.term import Kind, number, refused

TERM = Kind(
    name="loader.workers",
    examples=("loader.workers=4",),
    meaning="DataLoaders with so many workers.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=refused("needs the loader's reads apart from its decoding (stages), which no run holds yet"),
    value=number,
)
