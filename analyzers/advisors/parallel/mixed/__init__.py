"""Pipelines whose stages mix types of devices, in replicas of several devices each (tensor parallelism): published profiles
and plans (`files`, `profile`), the step of a plan (`pricing`), the best plan (`search`), and the answer (`advise`)."""
