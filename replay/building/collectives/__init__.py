"""Collectives: which calls on several ranks are one (`matching`), who waits for whom, and what is waiting and what transfer
(`rendezvous`), their nodes (`transfers`), and those that gloo's threads carry out (`gloo`)."""
