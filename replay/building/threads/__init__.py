"""CPU threads: classes of rows (`calls`), threads as chains of nodes (`cpu_threads`, `layout`), waits inside operations
(`pauses`), and the DataLoader with its workers (`loader`)."""
