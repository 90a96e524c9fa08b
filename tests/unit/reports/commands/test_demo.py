"""When and why the demo reports that its fault was not found first."""

import msgspec
import pytest

from esprof.reports.commands.demo import (
    FAULT_SHARE,
    MAX_CPU_EXCESS,
    MAX_QUIET_COST_PCT,
    MAX_WAIT_SHARE,
    WORKERS,
    MachineFacts,
    config,
    unclear,
)
from tests.cases import report as reportcase

PLANTED, OTHER, *_ = reportcase.findings(ranks=2)
EVEN = [4.0, 4.0 * (1 + MAX_CPU_EXCESS / 2)]
QUIET, WAITED = (
    MachineFacts(0.1, [MAX_WAIT_SHARE / 2] * WORKERS, EVEN),
    MachineFacts(0.1, [MAX_WAIT_SHARE / 2, 2 * MAX_WAIT_SHARE], EVEN),
)
SLOWED = MachineFacts(0.1, [MAX_WAIT_SHARE / 2] * WORKERS, [4.0, 4.0 * (1 + 2 * MAX_CPU_EXCESS)])


def said(findings, fault="slow-loader", rank=1, measured=QUIET):
    return unclear(msgspec.structs.replace(reportcase.diagnosis(), findings=findings), fault, rank, measured)


@pytest.mark.parametrize("measured", [QUIET, WAITED, SLOWED])
def test_nothing_is_unclear_if_the_fault_is_found_first_on_its_rank(measured):
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
def test_a_missed_fault_is_attributed_to_a_busy_machine_only_if_it_is_busy(findings, fault, rank):
    waited = said(findings, fault, rank, WAITED)
    assert waited.startswith(f"this machine is busy: the workers waited for a CPU {200 * MAX_WAIT_SHARE:.0f} %")
    slowed = said(findings, fault, rank, SLOWED)
    assert slowed.startswith(f"this machine is busy: the same work took one worker {200 * MAX_CPU_EXCESS:.0f} % more")
    quiet = said(findings, fault, rank, QUIET)
    assert "not busy" in quiet
    assert "report this as a bug" in quiet


def test_small_costs_are_usual_without_a_fault():
    small = msgspec.structs.replace(PLANTED, saving_pct=MAX_QUIET_COST_PCT)
    assert said([small], "none") is None
    assert said([], "none") is None


def test_the_fault_is_its_share_of_a_step_on_its_rank_alone():
    assert config("slow-loader", 1) == {"slow_storage": [0.0, FAULT_SHARE], "rest": [0.0, 0.0]}
    assert config("slow-rank", 0) == {"slow_storage": [0.0, 0.0], "rest": [FAULT_SHARE, 0.0]}
    assert config("none", 0) == {"slow_storage": [0.0, 0.0], "rest": [0.0, 0.0]}
