"""Frames of Python stacks as written in tables and traces: `file(line): function`."""

import re
import sys
from dataclasses import dataclass
from typing import Literal

Origin = Literal["job", "torch", "other"]
"""Owner of a frame's code: the job, PyTorch, or Python and other packages."""

_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.*)", re.DOTALL)
_TORCH = re.compile(r"(^|/)torch/")
_OTHERS = re.compile(r"(^|/)python3\.\d+/|(^|/)(site|dist)-packages/|^<")
_LIBRARIES = re.compile(
    "PIL|cv2|numpy|scipy|pandas|sklearn|skimage|torchvision|torchaudio|albumentations|av|decord|imageio|librosa|soundfile|"
    "h5py|pyarrow|fsspec|triton|tokenizers|tqdm|wandb|tensorboard|tensorboardX|mlflow|matplotlib|yaml|requests|urllib3"
)
"""Packages that jobs call for data, metrics and logs. Traces write their files without `site-packages/`."""


@dataclass(frozen=True)
class Frame:
    """One frame. If the source is unknown, as for a built-in function, `file` is empty and `line` is 0."""

    file: str
    line: int
    function: str

    @property
    def origin(self) -> Origin:
        if _TORCH.search(self.file):
            return "torch"
        # Traces of torch.profiler have paths relative to `sys.path`: those of the standard library have no folder.
        package = self.file.split("/")[0].removesuffix(".py")
        is_known = package in sys.stdlib_module_names or _LIBRARIES.fullmatch(package) is not None
        return "other" if not self.file or is_known or _OTHERS.search(self.file) else "job"


def frame(text: str) -> Frame:
    """Parse the text of a frame."""
    match = _FRAME.fullmatch(text)
    return Frame(match["file"], int(match["line"]), match["function"]) if match else Frame("", 0, text)
