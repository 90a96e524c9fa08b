"""What several threads decode for the first time at once: in a process of its own, which must live."""

import subprocess
import sys

import pytest

CODE = """
import sys, threading
from pathlib import Path
from esprof.run.collect import calls, raw
from esprof.run.collect.rolled_rows import RankRows

sys.setswitchinterval(1e-6)
folder = Path(sys.argv[1])
dump = folder / "dump.json"
dump.write_text('{"entries": [{"collective_seq_id": 1, "profiling_name": "gloo:all_reduce", "time_created_ns": 5}]}')
rolled = folder / "rolled.jsonl"
rolled.write_text('{"kind": "steps", "rows": [[1, 2, 3, "plain", 4, 5, null]]}\\n' * 20)
barrier = threading.Barrier(4)

def read():
    barrier.wait()
    try:
        calls.read_calls(dump)
    except Exception:
        pass
    rows = RankRows()
    raw._add_rolled(rows, rolled, [])
    assert len(rows.steps) == 20, rows.unreadable

threads = [threading.Thread(target=read) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.slow
def test_threads_that_read_notes_at_once_do_not_crash(tmp_path):
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, "")
