"""CPU threads: what each row is (`calls`), threads as chains of nodes (`cpu_threads`, laid out by `layout`), waits inside
operations (`pauses`), and the DataLoader with its workers (`loader`)."""
