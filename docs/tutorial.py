"""Run the commands of docs/tutorial.md and write what they print into the page: `python -m docs.tutorial`."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"```sh\n(?P<commands>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
LEFT_OUT = "…"
"""A paragraph of the page's output that stands for all paragraphs of the real output that are not shown."""


def command_blocks() -> list[str]:
    """The page's blocks of shell commands, in order."""
    return [match["commands"] for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def outputs(blocks: list[str], folder: Path) -> Iterator[str]:
    """Run the blocks in `folder`, all in one shell, and yield what each prints. Raise CalledProcessError at a failure."""
    (folder / "examples").symlink_to(ROOT / "examples")
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    end = "__end_of_block__"
    script = "\n".join(["set -e", *(f"{block}\necho {end}" for block in blocks)])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, script, done.stdout)
    yield from done.stdout.split(f"{end}\n")[:-1]


def shortened(output: str, shown: str) -> str:
    """`output`, with as many paragraphs left out as `shown` leaves out at its "…"."""
    paragraphs, pattern = output.strip().split("\n\n"), shown.strip().split("\n\n")
    if LEFT_OUT not in pattern:
        return output.strip()
    first = pattern.index(LEFT_OUT)
    last = len(pattern) - first - 1
    return "\n\n".join([*paragraphs[:first], LEFT_OUT, *paragraphs[len(paragraphs) - last :]])


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        printed = outputs(command_blocks(), Path(folder))

        def refreshed(match: re.Match[str]) -> str:
            commands, shown, output = match["commands"], match["output"], next(printed)
            if shown is None:
                return match[0]
            return f"```sh\n{commands}```\n\n```text\n{shortened(output, shown)}\n```\n"

        PAGE.write_text(BLOCK.sub(refreshed, page), encoding="utf-8")


if __name__ == "__main__":
    main()
