"""The recorder: what runs inside a training process (`injected`), and the launcher around it.

Torch is imported here and in `esprof.elastic` only. A job's processes load the folder above this one as `esprof_guest`, by
its place on disk, and import what they need of `core`, `run.raw` and this folder from there by relative imports.
"""
