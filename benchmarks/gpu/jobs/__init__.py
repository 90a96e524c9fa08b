"""The jobs that are recorded: plain PyTorch on one device, which know nothing of esprof.

Where several ranks run, they share the device, and gloo moves their gradients.
"""
