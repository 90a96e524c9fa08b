"""ESP309: another TCP congestion control, if the probe has measured that it is faster."""

import pytest

from tests.cases.findings import ungrouped
from tests.cases.gloo_buckets import run_with
from tests.cases.probed import controlled, on_hosts_with

NOW = (100, 101, 102, 103, 104, 105)


def found(*sweeps, control="cubic"):
    run = run_with((1, 1, 1, 1), (4,))
    run.probes = on_hosts_with(control, control, sweeps=sweeps) if sweeps else None
    return [one for one in ungrouped(run) if one.id == "ESP309"]


def test_the_fastest_of_several_is_named_with_its_price():
    """The all-reduce takes 80 ms."""
    (one,) = found(
        *(controlled(name, *(part * ms for ms in NOW)) for name, part in (("cubic", 1), ("bbr", 0.5), ("reno", 0.8)))
    )
    assert one.title.startswith("TCP congestion control bbr in place of cubic saves 40")
    assert one.saving_us == pytest.approx(40_000, rel=0.01)
    assert (one.evidence["present"].value, one.evidence["fastest"].value) == ("cubic", "bbr")
    assert "network.cc=bbr" in one.command


@pytest.mark.parametrize(
    "sweeps",
    [
        (),
        (controlled("cubic", *NOW), controlled("bbr", *(2 * ms for ms in NOW))),
        # Faster in the mean, by one repeat without lost packets.
        (controlled("cubic", *NOW), controlled("bbr", 1, *NOW[1:])),
        (controlled("cubic", *NOW),),
    ],
    ids=["no probe", "slower", "by chance", "one control"],
)
def test_without_a_clearly_faster_one_nothing_is_said(sweeps):
    assert found(*sweeps) == []


def test_hosts_that_have_the_fastest_one_hear_nothing():
    assert found(controlled("cubic", *NOW), controlled("bbr", *(ms / 2 for ms in NOW)), control="bbr") == []


def test_the_more_controls_are_tested_the_clearer_must_be_the_difference():
    """In 3 of 36 pairs of repeats bbr takes longer: a probability of 0.8 % by chance, and of 1.5 % in one of two tests."""
    cubic, bbr, reno = (
        controlled("cubic", *NOW),
        controlled("bbr", 50, 51, 52, 53, 54, 102.5),
        controlled("reno", *(2 * ms for ms in NOW)),
    )
    assert [one.evidence["fastest"].value for one in found(cubic, bbr)] == ["bbr"]
    assert found(cubic, bbr, reno) == []
