"""The recorder: what runs inside a training process (`injected`), and the launcher around it.

Torch is imported here and in `esprof.elastic` only.
"""
