"""What terms change and choose in a graph: edits (`edits`, `overlay`), nodes by kind of work and by what is known of them
beside the graph (`selections`, `queues`, `nested_operations`, `idle_gaps`, `host_cpus`, `loaders`), and the turns of an
elastic job's ESTs (`est_load`)."""
