"""Pipeline schedules: in which order each rank works on its microbatches (`orders`), and the graph that
replay runs (`graph`)."""
