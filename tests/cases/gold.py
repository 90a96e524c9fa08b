"""Text compared with a file under tests/gold. ESPROF_UPDATE_GOLD=1 rewrites the files: review the diff."""

import os
from pathlib import Path

GOLD = Path(__file__).parents[1] / "gold"


def assert_gold(name: str, text: str) -> None:
    path = GOLD / name
    if os.environ.get("ESPROF_UPDATE_GOLD"):
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")
