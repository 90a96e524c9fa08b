"""How far predictions of published plans on mixed GPUs are off.

    python -m benchmarks.mixed_plans gpus.yaml profiles_tmp.json llm_info.json plans/*.json --batch 288 --model OPT-350

Reads the files that the authors of Sailor (SOSP 2025) published (docs/how-to/mixed-gpus.md), predicts the step of each
plan, and prints a table, and JSON lines for the mean, median and worst error.
"""

import argparse
from pathlib import Path
from statistics import mean, median

from benchmarks.figures import show, table
from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.parallel.mixed.advise import predict
from esprof.analyzers.advisors.parallel.mixed.files import MixedFiles
from esprof.analyzers.advisors.parallel.mixed.pricing import MixedPricing
from esprof.analyzers.advisors.parallel.profile import Devices

_US_PER_S = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("files", type=Path, nargs="+", help="times and sizes of layers, and plans")
    parser.add_argument("--batch", type=int, required=True, help="samples of a step, where a plan does not say")
    parser.add_argument("--model")
    options = parser.parse_args()
    devices, files = read(options.inventory, Devices), MixedFiles(options.files)
    profile = files.profile(options.model, devices.devices)
    pricing = MixedPricing(profile, devices)
    rows, errors = [], []
    for given in files.given(profile):
        found = predict(pricing, given, options.batch)
        if found.measured_us is None or found.error_pct is None:
            continue
        seconds = (f"{us / _US_PER_S:.2f} s" for us in (found.measured_us, found.priced.step_us))
        rows.append([found.name, *seconds, f"{found.error_pct:+.1f} %"])
        errors.append(abs(found.error_pct))
    if not errors:
        parser.error("none of the plans was measured")
    print(table(["plan", ">measured", ">predicted", ">error"], rows))
    for name, of in (("mean", mean), ("median", median), ("worst", max)):
        show(f"mixed_plans.{name}_error", of(errors), "%", {"model": profile.model, "plans": len(errors)})


if __name__ == "__main__":
    main()
