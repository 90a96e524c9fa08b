"""Edits of a graph (`edits`, `overlay`), selections of nodes by kind (`selections`, `queues`) and by ranges of threads
(`thread_ranges`, `nested_operations`), padding, layers that are computed again, and the EST steps of an elastic job."""
