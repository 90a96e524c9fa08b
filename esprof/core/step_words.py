"""Text about steps, in the words for a run whose steps are blocks of repeated work or its whole window."""

import re
from typing import Literal

Unit = Literal["step", "block", "window"]
"""What the steps of a run are: steps of the job, or blocks of repeated work, or the window, where no step is marked."""

_WORD = r"(?<![\w.#`-])(?:steady-state )?step(s?)\b(?!\.\w|[\w#\[(=-])"
"""A step, but not the part of a name, such as `ProfilerStep#3`, `optimizer.step` or `--stack-steps`."""

_OF_WINDOW = (
    (r"\b(once|times) a step\b", r"\1 in the window"),
    (r"\b(ms|s|B|TFLOP) a step\b", r"\1 of the window"),
    (r"\bthese steps\b", "the window"),
    (r"\bA step\b", "The window"),
    (r"\ba step\b", "the window"),
    (_WORD, r"window\1"),
)
_OF_BLOCK = ((_WORD, r"block\1"),)


def in_words_of(unit: Unit, text: str) -> str:
    """`text`, which is written for steps, in the words for this unit."""
    for pattern, word in {"step": (), "block": _OF_BLOCK, "window": _OF_WINDOW}[unit]:
        text = re.sub(pattern, word, text)
    return text
