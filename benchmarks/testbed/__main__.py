"""Run a job on unlike hosts, see what the test bed delivers, or remove what a killed one left. Needs root.

    python -m benchmarks.testbed torchrun --cpu 0.6 0.3 --rate 200mbit none -- -m benchmarks.jobs.gpt --files /tmp/gpt
    python -m benchmarks.testbed probe
    python -m benchmarks.testbed clean

`probe` prints one JSON line a figure.
"""

import argparse
import json
import os
import signal
import sys

from benchmarks.testbed import network
from benchmarks.testbed.bed import clean, hosts
from benchmarks.testbed.probe import probe
from esprof.core.errors import EXIT_OK, EsprofError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.testbed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    torchrun = verbs.add_parser("torchrun", help="run `python ARGV` on each host, as one distributed job")
    torchrun.add_argument("--cpu", type=float, nargs="+", required=True, help="cores of each host, such as 0.6 0.3")
    torchrun.add_argument("--rate", nargs="+", required=True, help="link rate of each host, such as 200mbit none")
    torchrun.add_argument("--queue", type=int, default=network.QUEUE, help="bytes that wait for a link; more are lost")
    torchrun.add_argument("argv", nargs="+", help="a script or -m MODULE, and its arguments, after --")
    torchrun.set_defaults(verb=run_job)
    verbs.add_parser("probe", help="measure what the bed delivers").set_defaults(verb=print_probe)
    verbs.add_parser("clean", help="remove what killed beds left").set_defaults(verb=print_clean)
    options = parser.parse_args()
    try:
        code: int = options.verb(options)
    except EsprofError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


def run_job(options: argparse.Namespace) -> int:
    """Returns the job's exit code: the first rank's that failed, 128 + N where signal N ended it."""
    rates = [None if rate == "none" else rate for rate in options.rate]
    with hosts(cpu=options.cpu, rate=rates, queue=options.queue) as bed:
        codes = bed.torchrun(options.argv).wait()
    failed = next((code for code in codes if code), EXIT_OK)
    return failed if failed >= 0 else 128 - failed


def print_probe(options: argparse.Namespace) -> int:
    print(f"load average before: {os.getloadavg()[0]:.2f}; anything that runs beside the probe shows", file=sys.stderr)
    for figure in probe():
        print(json.dumps(figure), flush=True)
    return EXIT_OK


def print_clean(options: argparse.Namespace) -> int:
    for name in clean():
        print(f"Removed {name}", file=sys.stderr)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
