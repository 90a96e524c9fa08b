"""Runs to share: their whole contents as a value, names replaced by hashes, and smaller Runs."""
