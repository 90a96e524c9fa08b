"""How much less models know of the data of other ranks, after steps without an average (`esprof.ModelTravel`)."""

from collections import defaultdict
from statistics import fmean

import numpy as np

from esprof.run.run import Run


def accuracy_losses(run: Run) -> dict[int, np.ndarray]:
    """Steps since the last average -> accuracy loss of each comparison, float64[comparisons], by time: by how much the score
    of other ranks' models on a rank's batch is below that of its own model, mean over the ranks.

    Comparisons that a rank lacks are left out.
    """
    tables = [found for rank in run.ranks if (found := run.recorded("travels", rank)) is not None and len(found)]
    differences: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in tables:
        of_each = one.arrow["own"].to_numpy() - one.arrow["foreign"].to_numpy()
        for step, every, difference in zip(one.ints("step"), one.ints("every"), of_each, strict=True):
            differences[int(every), int(step)].append(float(difference))
    losses: dict[int, list[float]] = defaultdict(list)
    for (every, _), of_ranks in sorted(differences.items()):
        if len(of_ranks) == len(tables):
            losses[every].append(fmean(of_ranks))
    return {every: np.array(of_steps) for every, of_steps in losses.items()}
