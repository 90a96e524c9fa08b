"""When the demo says that its fault does not show, and why."""

import msgspec
import pytest

from esprof.reports.commands.demo import BUSY, QUIET_PCT, SHARE, UNEVEN, WORKERS, MachineFacts, config, unclear
from tests.cases import report as reportcase

PLANTED, OTHER, *_ = reportcase.findings(ranks=2)
EVEN = [4.0, 4.0 * (1 + UNEVEN / 2)]
QUIET, WAITED = MachineFacts(0.1, [BUSY / 2] * WORKERS, EVEN), MachineFacts(0.1, [BUSY / 2, 2 * BUSY], EVEN)
SLOWED = MachineFacts(0.1, [BUSY / 2] * WORKERS, [4.0, 4.0 * (1 + 2 * UNEVEN)])


def said(findings, fault="slow-loader", rank=1, measured=QUIET):
    return unclear(msgspec.structs.replace(reportcase.diagnosis(), findings=findings), fault, rank, measured)


@pytest.mark.parametrize("measured", [QUIET, WAITED, SLOWED])
def test_a_fault_that_is_found_first_on_its_rank_needs_no_word(measured):
    assert (PLANTED.id, PLANTED.ranks) == ("ESP101", (1,))
    assert said([PLANTED, OTHER], measured=measured) is None


@pytest.mark.parametrize(
    ("findings", "fault", "rank"),
    [
        ([OTHER, PLANTED], "slow-loader", 1),
        ([PLANTED], "slow-loader", 0),
        ([PLANTED], "slow-rank", 1),
        ([], "slow-rank", 1),
        ([PLANTED], "none", 1),
    ],
    ids=["second", "wrong rank", "wrong family", "nothing", "nothing planted"],
)
def test_what_is_not_as_planted_is_laid_to_a_busy_machine_only_if_it_is_busy(findings, fault, rank):
    waited = said(findings, fault, rank, WAITED)
    assert waited.startswith(f"this machine is busy: the workers stood waiting for a processor {200 * BUSY:.0f} %")
    slowed = said(findings, fault, rank, SLOWED)
    assert slowed.startswith(f"this machine is busy: the same work took one of them {200 * UNEVEN:.0f} % more")
    quiet = said(findings, fault, rank, QUIET)
    assert "not busy" in quiet
    assert "worth a report" in quiet


def test_small_costs_are_usual_without_a_fault():
    small = msgspec.structs.replace(PLANTED, saving_pct=QUIET_PCT)
    assert said([small], "none") is None
    assert said([], "none") is None


def test_the_fault_is_its_share_of_a_step_on_its_rank_alone():
    assert config("slow-loader", 1) == {"slow_storage": [0.0, SHARE], "rest": [0.0, 0.0]}
    assert config("slow-rank", 0) == {"slow_storage": [0.0, 0.0], "rest": [SHARE, 0.0]}
    assert config("none", 0) == {"slow_storage": [0.0, 0.0], "rest": [0.0, 0.0]}
