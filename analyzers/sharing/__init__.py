"""Runs to share: smaller, and without the names of the job, with the same diagnosis."""
