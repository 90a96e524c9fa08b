"""Training jobs for the test bed: plain PyTorch over gloo that knows nothing of esprof.

Each runs under torchrun as `-m benchmarks.jobs.NAME`. Three are data-parallel by DDP, read samples from files and take the
same arguments: `gpt` is even in computing and communication, `mlp` has large gradients for little computing, `cnn` decodes
images and has BatchNorm.

The others make their samples in memory and write their own loop, as users would: `sharded` (FSDP2), `accumulated` (DDP that
adds up gradients of several batches), `flat` (one all-reduce by hand), `residual` (DDP), `pipeline` (stages that send and
receive). They are those of `benchmarks.unseen`; esprof is not to be made with them. `planted` is that of
`benchmarks.check_trial`, `scheduled` (a pipeline of torch.distributed.pipelining) that of `benchmarks.schedules`.
"""
