"""Starting elastic jobs whose number of processes can change: by one controller, or by torchrun on hosts that come and go.

`supervisor` starts a generation of workers for each number of processes; `hosts` starts torchrun with what it needs;
`messages` is what launcher and workers tell each other, and `worker` the workers' end of it.
"""
