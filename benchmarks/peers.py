"""Other tools that read the same traces, each in an environment of its own."""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

_LOAD = """
import logging, sys, time
logging.disable(logging.CRITICAL)
from hta.common.trace import Trace
for path in map(str.strip, sys.stdin):
    began = time.process_time()
    Trace(trace_files={0: path}).parse_traces(use_multiprocessing=False)
    print(time.process_time() - began, flush=True)
"""


class Hta:
    """Holistic Trace Analysis, running. It is installed on first use, without the notebook that it depends on."""

    version = "0.5.0"

    def __enter__(self) -> "Hta":
        command = [_python(f"HolisticTraceAnalysis=={self.version}"), "-c", _LOAD]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def load_s(self, path: Path) -> float:
        """CPU seconds that it takes to load the trace of one rank."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{path.resolve()}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def _python(requirement: str) -> Path:
    """The interpreter of an environment that holds HTA and what loading a trace needs."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "esprof" / "benchmarks" / requirement
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        # pandas 3 breaks it. PyYAML and psutil are imported without being declared: the notebook brings them.
        subprocess.run([*pip, "pandas<3", "networkx", "plotly", "psutil", "pyyaml"], check=True, stdout=sys.stderr)
        subprocess.run([*pip, "--no-deps", requirement], check=True, stdout=sys.stderr)
        ready.touch()
    return python
