"""`esprof record`'s own process: starts the job, watches it, and asks it for windows."""
