"""The annotation of a pass of one microbatch through one stage of a pipeline, as torch.distributed.pipelining spells it."""

import re
from typing import NamedTuple

_NAME = re.compile(r"PP:(\d{1,6})([FBIW])(\d{1,6})", re.ASCII)


class NamedPass(NamedTuple):
    """One pass."""

    stage: int
    kind: str
    """`F` forward, `B` the whole backward, `I` backward for the gradient of the input, `W` for those of the weights."""
    microbatch: int

    @property
    def name(self) -> str:
        """The name of its annotation."""
        return f"PP:{self.stage}{self.kind}{self.microbatch}"


def pass_of(name: str) -> NamedPass | None:
    """The pass of an annotation; None if its name is not that of a pass."""
    match = _NAME.fullmatch(name)
    return NamedPass(int(match[1]), match[2], int(match[3])) if match else None
