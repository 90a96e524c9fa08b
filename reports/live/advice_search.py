"""Search for a better plan for a running job, as a process with the words RUN and STEP.

It takes seconds of CPU time, which would delay the page; its low priority protects a job on this machine.
"""

import os
import sys
from pathlib import Path

import msgspec

from esprof.analyzers import recommend
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.core.errors import EsprofError
from esprof.reports.live.current_run import current_run
from esprof.reports.live.proposal import LatestSearch, Proposal, RankProposal, write_search
from esprof.run.request import TelemetryRequest

_NICENESS = 15


def search_advice(run: Path, since: int) -> LatestSearch:
    """The proposal for the job at `run`, by its steps from `since` on, or why there is none."""
    try:
        advice = recommend(current_run(run, TelemetryRequest(since=since)), "assignment")
    except EsprofError as error:
        return LatestSearch(reason=" ".join(filter(None, (error.reason, error.remedy))))
    if not isinstance(advice, EstAdvice):
        return LatestSearch(reason="This is not an elastic job: use `esprof recommend`.")
    ranks = msgspec.convert(advice.decision.ranks, tuple[RankProposal, ...], from_attributes=True)
    fields = {name: getattr(advice, name) for name in Proposal.__struct_fields__ if name != "ranks"}
    return LatestSearch(proposal=Proposal(ranks=ranks, **fields))


def main() -> int:
    os.nice(_NICENESS)
    run, since = Path(sys.argv[1]), int(sys.argv[2])
    try:
        write_search(run, search_advice(run, since))
    except EsprofError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
