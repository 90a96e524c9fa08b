"""Knobs as read back, and mean steps."""

import numpy as np
import pytest

from esprof.analyzers.verified.sides import KnobNotSet, KnobValue, read_back, refuse_other_job, side
from esprof.core.errors import MismatchError
from esprof.run.run import KnobReading, RankMeta, Run, RunMeta
from esprof.run.schema import STEPS, table


def run_of(*values, name="bucket_mb", reason="", paced_by="optimizer", steps_ms=(), device="cpu"):
    """A run in which the ranks read the knob back as `values`; steps from the second on take `steps_ms`."""
    ranks = tuple(
        RankMeta(
            rank=rank,
            device=device,
            paced_by=paced_by,
            knobs=(KnobReading(name=name, value=value, reason=reason),) if value != "unread" else (),
        )
        for rank, value in enumerate(values)
    )
    took = (1e6 * np.array([1, *steps_ms])).astype(np.int64)
    ends = np.cumsum(took)
    rows = {
        "step": np.arange(1, len(took) + 1),
        "start_ns": ends - took,
        "dur_ns": took,
        "phase": ["plain"] * len(took),
    }
    tables = {"steps": table(rows, STEPS)}
    return Run(RunMeta(world_size=len(values), ranks=ranks), lambda name, rank: tables.get(name))


def test_a_changed_knob_is_read_back():
    assert read_back({"bucket_mb": "4"}, run_of("25", "25"), run_of("4", "4")) == (
        KnobValue(name="bucket_mb", before="25", after="4"),
    )


def test_a_knob_may_be_absent_before_the_change():
    """A loader with workers has a prefetch; one without has none."""
    assert read_back({"bucket_mb": "4"}, run_of(None), run_of("4"))[0].before == "nothing"


def test_ranks_without_the_knob_do_not_count():
    (knob,) = read_back({"bucket_mb": "4"}, run_of("25", None), run_of("4", None))
    assert knob.after == "4"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("4", "4"), ("4", "4"), "did not change: it is 4 with and without the change"),
        (("25", "25"), ("4", "25"), "did not change"),
        (("25", "25"), ("5", "5"), "was set to 4, but is 5"),
        (("25", "25"), (None, None), "was set to 4, but is nothing"),
        ((None, None), (None, None), "nothing to set it on"),
        (("25", "25"), ("unread", "unread"), "not read back"),
        (("25", "25"), ("1, 4", "1, 4"), "was set to 4"),
    ],
)
def test_an_unchanged_knob_is_an_error(before, after, said):
    with pytest.raises(KnobNotSet, match=said):
        read_back({"bucket_mb": "4"}, run_of(*before), run_of(*after))


def test_the_error_includes_the_reason_from_the_job():
    with pytest.raises(KnobNotSet, match="a hook of its own"):
        read_back({"bucket_mb": "4"}, run_of("25"), run_of("25", reason="a hook of its own"))


def test_steps_with_different_delimiters_are_not_comparable():
    with pytest.raises(MismatchError, match=r"optimizer.*module"):
        read_back({"bucket_mb": "4"}, run_of("25"), run_of("4", paced_by="module"))


def test_a_prediction_does_not_apply_to_another_setting():
    with pytest.raises(MismatchError, match="world size: 1 as recorded, 2 now"):
        refuse_other_job(run_of("25"), run_of("25", "25"))


def test_the_mean_covers_only_the_selected_steps():
    run = run_of("4", steps_ms=[100, 100, 10, 12, 14, 10, 14, 1000])
    # Steps 2 to 9, of which those from 4 on count.
    assert side(run, skip=3, steps=5).step_us == pytest.approx(12_000)
    assert side(run, skip=3, steps=0).step_us == pytest.approx(1_060_000 / 6)


def test_too_few_steps_are_an_error():
    with pytest.raises(MismatchError, match="4 steps after the first 3"):
        side(run_of("4", steps_ms=[10] * 6), skip=3, steps=40)
