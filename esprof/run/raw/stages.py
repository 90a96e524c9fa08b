"""Names of the stages and parts of batches that the recorder adds by itself, or that have a meaning."""

GARBAGE_COLLECTION = "garbage collection"
"""Python's collector, on the training thread."""

PINNING = "pinning of a batch"
"""A batch is copied to pinned memory, usually by a thread of the rank."""

COLLATE, DECODE, TRANSFORM = "collate", "decode", "transform"
"""Parts of the making of a batch that the recorder recognises. A data set may mark its own by these names."""

READ = "read"
"""Part of the making of a batch in which the data set says that it reads: `esprof.stage("read")`."""

STAGING = " (staging)"
"""After the name of a save: copying the state, before it is written in the background."""

ELASTIC_SAVE = "checkpoint of ElasticTrainer"

SAVES = ("torch.save", "torch.distributed.checkpoint.", "safetensors.torch.", ELASTIC_SAVE)
"""Prefixes of the stages that are noted for saves."""
