"""`storage=2x`: storage that answers faster."""

from esprof.replay.whatif.term import Kind, refused, speed_up

TERM = Kind(
    name="storage",
    examples=("storage=2x",),
    meaning="Storage that reads so many times as fast.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=refused("needs the loader's reads apart from its decoding (stages), which no run holds yet"),
    value=speed_up,
)
