"""TCP congestion controls on links with short and long queues: what `network.cc=` predicts, and what the change brings.

    python -m benchmarks.congestion KEEP [--repeats 3] [--only REGEX] [--write-model-errors]

Trains a job on two hosts of the test bed (needs root), whose links lose what does not fit into their queues. Records it
once for each queue, probed, into KEEP, and makes each change by `esprof verify`. Prints a JSON line a change, and one for
each queue with the best control as predicted and as measured. What is in KEEP already is not done again.
"""

import argparse
import re
from pathlib import Path

import esprof
from benchmarks.figures import show
from benchmarks.model_errors import write_carried_out
from benchmarks.verified import Job, carried_out, done, record, verify
from esprof.replay.whatif.communication.congestion import measured_controls
from esprof.run.logs import LEDGER, ObservedOutcome

QUEUES = (10_000, 20_000, 1_000_000)
"""Bytes that wait for a link; packets beyond are lost."""
RATES = ("none", "100mbit")
"""A fast host fills the queue of a slow one."""
JOB = ("--hidden", "256", "--bucket-mb", "0.5")
PROBE_S = 120
TERM = "network.cc="


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keep", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), help="changes whose `QUEUE WHAT-IF` this matches"
    )
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    runs = []
    for queue in QUEUES:
        job = Job("mlp", JOB, (), RATES, queue)
        run = options.keep / job.called
        record(job, run, options.keep, PROBE_S)
        present, controls = controls_of(run)
        for spec in (TERM + control for control in controls if control != present):
            if spec not in done(run) and options.only.search(f"{queue} {spec}"):
                verify(job, spec, run, options.keep, options.repeats)
        show_best(run, queue, present)
        runs.append(run)
    if options.write_model_errors:
        answers = (one for run in runs for one in carried_out(run))
        write_carried_out("congestion", "python -m benchmarks.congestion KEEP", answers)


def controls_of(run: Path) -> tuple[str | None, list[str]]:
    """The control of the hosts, and all that were measured."""
    probes = esprof.load(run).probes
    assert probes is not None, "recorded with a probe"
    return probes.conditions[0].congestion, measured_controls(probes)


def show_best(run: Path, queue: int, present: str | None) -> None:
    """Print the control with the shortest step, as predicted and as measured, of those that were carried out."""
    outcomes = [one for one in LEDGER.read(run) if isinstance(one, ObservedOutcome)]
    if not outcomes:
        return
    # Relative to the present control in the same change: the machine is not as fast at all times.
    predicted, measured = (
        {present: 1.0, **{one.spec.removeprefix(TERM): round(of(one) / one.before.us, 3) for one in outcomes}}
        for of in (lambda one: one.predicted.us, lambda one: one.observed.us)
    )
    best = [min(steps, key=steps.__getitem__) for steps in (predicted, measured)]
    context = {"queue": queue, "predicted": predicted, "measured": measured, "best": best}
    show("best_control_is_predicted", int(best[0] == best[1]), "queues", context)


if __name__ == "__main__":
    main()
