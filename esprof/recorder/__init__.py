"""The recorder: what runs inside a training process (`injected`), and the launcher around it.

Torch is imported here and in `esprof.elastic` only. A job's processes load this folder as `esprof_recorder`, by its place
on disk: nothing may be imported in this file.
"""
