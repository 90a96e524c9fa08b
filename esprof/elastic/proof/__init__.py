"""Proof that jobs did the same: fingerprints, hashes of every step, and their comparison."""
