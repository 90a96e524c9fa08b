"""One target under atheris: `guided_process.py TARGET SECONDS FOLDER RESULT [FOUND]`.

atheris changes the bytes of one file of the target and prefers what reaches new code. Its counts come to RESULT.
"""

import sys
from pathlib import Path

import atheris
import msgspec

with atheris.instrument_imports(include=["esprof"]):
    from benchmarks.fuzz.targets import TARGETS
    from benchmarks.fuzz.worker import Attempts, limit

_NOTED_EVERY = 200


def main() -> None:
    name, seconds, folder, result, found = sys.argv[1:]
    target = TARGETS[name]
    attempts = Attempts(target, Path(folder), Path(found) if found else None)
    corpus = Path(folder).with_suffix(".corpus")
    corpus.mkdir()
    for number, file in enumerate(target.files):
        (corpus / str(number)).write_bytes(bytes([number]) + attempts.valid[file])
    limit()

    def one(data: bytes) -> None:
        if data:
            attempts.take(target.files[data[0] % len(target.files)], data[1:])
        if attempts.counts.inputs % _NOTED_EVERY == 0:
            Path(result).write_bytes(msgspec.json.encode(attempts.counts))

    # Its own limits would end the process: `limit` has better ones.
    options = [f"-max_total_time={seconds}", "-timeout=0", "-rss_limit_mb=0", "-max_len=65536", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
