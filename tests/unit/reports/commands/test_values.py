"""Times as options spell them."""

import click
import pytest

from esprof.reports.commands.values import Duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("120", 120), ("120s", 120), ("2min", 120), ("1h", 3600), ("1.5", 1.5), ("24h", 86_400)]
)
def test_a_time_without_a_unit_is_in_seconds(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1", "25h", "1d", "nan", "inf", "2 min", "9" * 400, "1_0"])
def test_other_words_are_no_time(text):
    with pytest.raises(click.BadParameter, match="is not a time from 1 s to 24 h"):
        Duration().convert(text, None, None)
