"""Answers of earlier commands, so that the same question about the same files need not be computed again.

`content` hashes the files, `question` names all else that an answer depends on, and `store` keeps the answers. Modules here
import no large library: that would take longer than most answers.
"""
