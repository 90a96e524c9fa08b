"""Up to which step the bits of a job are proven, as its history says."""

import pytest

from esprof.analyzers.summary.job_proof import JobProof
from esprof.run.logs import JobEvent


def event(what, step, proven=None):
    return JobEvent(what=what, step=step, proven=proven)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([event("started", 0), event("left", 9)], None),
        ([event("started", 0), event("checkpoint", 60, 50), event("proven", 80, 75)], JobProof(75, None)),
        ([event("checkpoint", 60, 50), event("diverged", 75, 50), event("checkpoint", 90, 50)], JobProof(50, 75)),
        ([event("diverged", 0)], JobProof(None, 0)),
        ([event("diverged", 75, 50), event("started", 51, 50), event("proven", 80, 75)], JobProof(75, None)),
        ([event("checkpoint", 60, 50), event("started", 26, 25)], JobProof(25, None)),
    ],
)
def test_the_last_word_counts(events, expected):
    assert JobProof.of_history(events) == expected
