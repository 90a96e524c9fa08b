"""Proofs while a job trains: EST steps that run again elsewhere, and up to which step all of them had the same bits."""
