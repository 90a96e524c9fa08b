"""One real rank of a job whose peers are replayed: what `esprof export --format ghost` copies into its folder.

The modules import PyTorch, the standard library and each other, so that they run where esprof is not installed.
"""
