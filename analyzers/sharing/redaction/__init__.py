"""Hashes in the place of the names of a job, except the words by which rules recognise what an operation is."""
