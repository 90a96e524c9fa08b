"""What of an error the scatter of steps explains."""

import numpy as np
import pytest

from esprof.replay.whatif.error.held_out import beyond_scatter


def test_an_error_that_the_scatter_of_steps_explains_is_none():
    assert beyond_scatter(0.1, [8.0, 12.0, 8.0, 12.0], [9.0, 13.0, 9.0, 13.0]) == 0
    assert beyond_scatter(-0.1, [8.0, 12.0, 8.0, 12.0], [9.0, 13.0, 9.0, 13.0]) == 0


@pytest.mark.parametrize("error", [0.1, -0.1])
def test_an_error_of_steps_that_do_not_scatter_counts_in_full(error):
    assert beyond_scatter(error, [10.0, 10.0], [10.0, 10.0]) == pytest.approx(0.1)


def test_only_the_error_beyond_scatter_counts():
    seen, unseen = [9.9, 10.1, 9.9, 10.1], [9.9, 10.1, 9.9, 10.1]
    scatter = 2.36 * np.std(seen + unseen, ddof=1) * np.sqrt(1 / 4 + 1 / 4) / 10
    assert beyond_scatter(0.3, seen, unseen) == pytest.approx(0.3 - scatter)
