"""ESP308: models that stay alike for several steps need no exchange of gradients in each."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.findings.communication.accuracy_losses import accuracy_losses
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core.statistics import mean_margin

MAX_ACCURACY_LOSS = 0.05
"""Most that the 95 % interval of the accuracy loss may contain, as in SkewScout (Hsieh et al., ICML 2020)."""

MIN_COMPARISONS = 3
"""Fewest comparisons for an interval of their mean."""


def local_steps(case: Case) -> Iterator[Cause]:
    """The largest recorded number of steps apart after which models of other ranks are as good on a rank's data."""
    losses = {every: found for every, found in accuracy_losses(case.run).items() if len(found) >= MIN_COMPARISONS}
    highest = {every: float(found.mean()) + mean_margin(found) for every, found in losses.items()}
    alike = [every for every, high in highest.items() if every > 1 and high <= MAX_ACCURACY_LOSS]
    if not alike:
        return
    every = max(alike)
    scenario = f"sync_every={every}"
    if not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    yield Cause(
        id="ESP308",
        title=f"Models that ranks train apart for {every} steps stay alike: gradients need no exchange in each step",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenario,
        confidence="medium",
        evidence={
            "steps_apart": Evidence(every),
            "accuracy_loss": Evidence(round(float(losses[every].mean()), 4), "share"),
            "accuracy_loss_at_most": Evidence(round(highest[every], 4), "share"),
            "comparisons": Evidence(len(losses[every])),
            "too_far_apart": Evidence(", ".join(str(one) for one in sorted(highest) if one not in alike) or None),
        },
        advice=f"Average the models every {every} steps instead of the gradients in each (local SGD: "
        "`torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`), after some steps of usual "
        "training. The results of training change: compare the final accuracy. An average leaves the running "
        "statistics of BatchNorm as they are on each rank.",
    )


_PAGES = (
    Page(
        "ESP308",
        "Models that are trained apart stay alike",
        "Data-parallel training averages gradients in each step. With local SGD each rank trains a model of its own "
        "for several steps, and then the ranks average their models. That works for as many steps as models of other "
        "ranks remain about as good on a rank's data as its own, which depends on the data: the more the ranks' mixes "
        "of classes differ (ESP112), the sooner models drift apart.",
        "The job compares models with `esprof.ModelTravel`. `accuracy loss` is by how much models of other ranks score "
        "lower on a rank's batch than its own model, just before an average, mean over ranks and comparisons; `accuracy "
        "loss at most` is the end of its 95 % interval (Student's t over `comparisons`, at least three). `steps apart` "
        "is the largest recorded number of steps for which that is at most 5 percentage points, as in SkewScout; `too "
        "far apart` lists those for which it is more.",
        "`sync_every=`: replay takes the all-reduces of gradients out and lets the ranks average their models after "
        "every so many steps.",
        "Average models instead of gradients, and check the final accuracy.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=local_steps)
