"""Looks for advice for a running job, in a process of its own: `python -m esprof.reports.live.advice_search RUN STEP`.

It takes seconds of a CPU, which neither the page nor a job on this machine should miss.
"""

import os
import sys
from pathlib import Path

import msgspec

from esprof.analyzers import recommend
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.core.errors import EsprofError
from esprof.reports.live.current_run import current_run
from esprof.reports.live.offer import LatestSearch, Offer, RankOffer, write_search
from esprof.run.request import TelemetryRequest

_NICENESS = 15


def search_advice(run: Path, since: int) -> LatestSearch:
    """What is advised to the job at `run` by its steps from `since` on, or why nothing is."""
    try:
        advice = recommend(current_run(run, TelemetryRequest(since=since)))
    except EsprofError as error:
        return LatestSearch(reason=" ".join(filter(None, (error.reason, error.remedy))))
    if not isinstance(advice, EstAdvice):
        return LatestSearch(reason="This is no elastic job: its advice is for `esprof recommend`.")
    ranks = msgspec.convert(advice.decision.ranks, tuple[RankOffer, ...], from_attributes=True)
    fields = {name: getattr(advice, name) for name in Offer.__struct_fields__ if name != "ranks"}
    return LatestSearch(offer=Offer(ranks=ranks, **fields))


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
