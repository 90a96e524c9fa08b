"""The recorder: the code that runs inside a training process (`injected`), and its launcher.

Only this folder and `esprof.elastic` import torch. A job's processes load the parent folder by its path, as `esprof_guest`,
and import `core`, `run.raw` and this folder from it by relative imports.
"""
