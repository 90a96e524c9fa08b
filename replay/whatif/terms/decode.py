"""`decode=2x`: a faster decoder of samples."""

from esprof.replay.whatif.term import Kind, Loading, speed_up

TERM = Kind(
    name="decode",
    examples=("decode=2x",),
    meaning="Samples are decoded faster by this factor. Its reads keep their time.",
    needs='As `loader.workers`, and decoding by Pillow or torchvision, or marked by `esprof.stage("decode")`.',
    assumes="As `loader.workers`.",
    effect=Loading(lambda batches, term: batches.with_decoder(term.value)),
    value=speed_up,
    scoped=True,
)
