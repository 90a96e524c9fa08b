"""Find secrets in command lines, so that no Run and no page holds a token.

A secret is known by the name of its option or variable (`--wandb-key=…`, `HF_TOKEN=…`), by the form of well-known tokens,
or as the password of an address (`https://user:password@host`). Others, such as a positional password, are not found.
"""

import re
from collections.abc import Iterable

REDACTED = "REDACTED"
"""Stands for a secret."""

_WORDS = r"(?:api|access|private|secret)?[_-]?key|token|secret|passw(?:or)?d|passphrase|credentials?|pat"
_NAME = rf"(?:[A-Za-z][\w.-]*?[_.-])?(?:{_WORDS})"
_OPTION = re.compile(rf"-{{1,2}}{_NAME}", re.IGNORECASE)
"""An option whose value is the next word."""
_ASSIGNMENT = re.compile(rf"(?<![\w.])(-{{0,2}}\+{{0,2}}{_NAME}=)(\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)", re.IGNORECASE)
_OPTION_IN_TEXT = re.compile(rf"((?:^|\s)-{{1,2}}{_NAME}\s+)([^\s\"';&|-][^\s\"';&|]*)", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(?=@)")
_TOKEN = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
)
"""Tokens of Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS and Google, and JSON web tokens."""


def without_secrets(command: Iterable[str]) -> tuple[str, ...]:
    """`command` with `REDACTED` in the place of each secret. Applied twice, it changes nothing more."""
    found: list[str] = []
    hides_next = False
    for word in command:
        # An option without a value, `--token --verbose`, hides nothing.
        found.append(REDACTED if hides_next and not word.startswith("-") else _hidden(word))
        hides_next = _OPTION.fullmatch(word) is not None
    return tuple(found)


def is_redacted(command: Iterable[str]) -> bool:
    """Whether a secret was taken out of `command`, so that it cannot be run again as it is."""
    return any(REDACTED in word for word in command)


def _hidden(word: str) -> str:
    word = _ASSIGNMENT.sub(rf"\g<1>{REDACTED}", word)
    # A whole command in one word: `bash -c "train --token abc"`.
    if " " in word:
        word = _OPTION_IN_TEXT.sub(rf"\g<1>{REDACTED}", word)
    return _TOKEN.sub(REDACTED, _PASSWORD.sub(rf"\g<1>{REDACTED}", word))
