"""`stages=3+5+4`: a pipeline job with other layers on its stages."""

import re

from esprof.core.errors import UsageError
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.scenario import Declined, Scenario, changing_pipeline
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase
from esprof.run.run import Run

_COUNTS = re.compile(r"[1-9]\d{0,3}(?:\+[1-9]\d{0,3}){1,999}", re.ASCII)


def _counts(value: str) -> tuple[int, ...]:
    if not _COUNTS.fullmatch(value):
        raise UsageError(
            f"{value!r} does not tell how many layers each stage has",
            remedy="Write stages=3+5+4: a number for each stage.",
        )
    return tuple(map(int, value.split("+")))


def _restaged(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_pipeline(now, stages=terms[0].value)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    raise Declined("the memory of a pipeline with other stages is not known")


TERM = Kind(
    name="stages",
    examples=("stages=3+5+4",),
    meaning="The stages of a pipeline have so many layers each, in the order of the layers as recorded. If there are more "
    "stages than ranks, the ranks take them in turn (interleaved). Layers are the entries of the longest list of modules "
    "(`nn.Sequential`, `nn.ModuleList`) that all stages have.",
    needs="What `pipeline` needs, recorded with `--shapes`; a layer of the same operations and shapes on each rank to which "
    "a layer moves; messages of one size between all stages.",
    assumes="A layer takes as long on a rank as those of its kind do there, and a message as long as others to this rank. "
    "The optimizer's time grows with the parameters. A further stage on a rank adds what a pass takes in addition to its "
    "layers.",
    effect=Edit(TermPhase.REBUILD, _restaged),
    memory=_memory,
    value=_counts,
)
