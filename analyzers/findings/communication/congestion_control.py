"""ESP309: a TCP congestion control with which the job's collectives were measured to be faster."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core.readable import duration
from esprof.replay.whatif.communication.congestion import ProbedControls, measured_controls


def faster_control(case: Case) -> Iterator[Cause]:
    """The control that saves most, if the repeats of the probe show that it is faster."""
    probes = case.run.probes
    if probes is None:
        return
    scenarios = {control: f"network.cc={control}" for control in measured_controls(probes)}
    # The present control is declined.
    savings = {control: case.pricer.saving_ns(spec) or 0.0 for control, spec in scenarios.items()}
    best = max(savings, key=savings.__getitem__, default=None)
    if best is None or not case.is_worth_reporting(savings[best]):
        return
    controls = ProbedControls.of(probes, best)
    if not controls.is_clearly_faster():
        return
    yield Cause(
        id="ESP309",
        title=f"TCP congestion control {best} in place of {controls.present} saves {duration(savings[best])} a step",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenarios[best],
        confidence="medium",
        evidence={"present": Evidence(controls.present), "fastest": Evidence(best)},
        advice=f"Set it on all hosts as root, and restart the job: sysctl net.ipv4.tcp_congestion_control={best}. First "
        f"try it in the job alone: esprof verify RUN --what-if {scenarios[best]} -- CMD. Ask who else uses the network: "
        "a control may take bandwidth from other connections.",
    )


_PAGES = (
    Page(
        "ESP309",
        "Another TCP congestion control is faster",
        "Collectives between CPUs take less time over connections with another TCP congestion control, as the probe "
        "measured them between the ranks of this job, at its sizes. Which control is the fastest depends on the link, "
        "on the queues of its switches and on the sizes of messages.",
        "`present` is the control of the hosts, `fastest` the one with the shortest predicted step. At the largest measured "
        "size, repeats with it are shorter than with the present one (Mann–Whitney test, 1 %, with Holm's correction for "
        "the number of controls and collectives).",
        "`network.cc=NAME`: each collective takes the ratio of the mean measured times at its size.",
        "Set the control on all hosts and restart the job (`sysctl net.ipv4.tcp_congestion_control=NAME`). "
        "`esprof verify RUN --what-if network.cc=NAME -- CMD` tries it in the job alone.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=faster_control)
