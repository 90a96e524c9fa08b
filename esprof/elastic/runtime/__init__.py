"""One step of an elastic job: its ESTs, their turns, the transport between ranks, the update."""
