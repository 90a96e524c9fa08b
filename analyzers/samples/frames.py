"""Frames of Python stacks, as tables and traces write them: `file(line): function`."""

import re
import sys
from dataclasses import dataclass
from typing import Literal

Origin = Literal["job", "torch", "other"]
"""Whose code a frame is: the job's own, PyTorch's, or that of Python and of other packages."""

_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.*)", re.DOTALL)
_TORCH = re.compile(r"(^|/)torch/")
_OTHERS = re.compile(r"^python3\.\d+/|(^|/)(site|dist)-packages/|^<")


@dataclass(frozen=True)
class Frame:
    """One frame. `file` and `line` are empty and 0 where they are not known, as for a built-in function."""

    file: str
    line: int
    function: str

    @property
    def origin(self) -> Origin:
        if _TORCH.search(self.file):
            return "torch"
        # A trace of torch.profiler names files relative to `sys.path`, so that the standard library's have no folder.
        is_standard = self.file.split("/")[0].removesuffix(".py") in sys.stdlib_module_names
        return "other" if not self.file or is_standard or _OTHERS.search(self.file) else "job"


def frame(text: str) -> Frame:
    """The frame that `text` tells of."""
    match = _FRAME.fullmatch(text)
    return Frame(match["file"], int(match["line"]), match["function"]) if match else Frame("", 0, text)
