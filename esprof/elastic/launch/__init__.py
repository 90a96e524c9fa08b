"""Launchers of elastic jobs whose number of processes can change: one controller, or torchrun on hosts that join and leave.

`supervisor` starts a generation of workers for each number of processes; `hosts` starts torchrun with the required settings;
`messages` defines the messages between launcher and workers, and `worker` the workers' side.
"""
