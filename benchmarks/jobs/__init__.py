"""Training jobs for the test bed: plain data-parallel PyTorch over gloo, by the same arguments, knowing nothing of esprof.

Each runs under torchrun as `-m benchmarks.jobs.NAME`: `gpt` is even in computing and communication, `mlp` has large
gradients for little computing, `cnn` decodes images and has BatchNorm.
"""
