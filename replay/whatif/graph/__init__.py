"""Edits of a graph (`edits`, `overlay`), selections of nodes by kind of work and by other records (`selections`, `queues`,
`nested_operations`, `idle_gaps`, `host_cpus`, `loaders`), and the EST steps of an elastic job (`est_load`)."""
