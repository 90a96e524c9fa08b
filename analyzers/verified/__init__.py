"""Predictions held against what came once a change was made."""
