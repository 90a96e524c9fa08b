"""Collectives: which calls on several ranks are one, who waits for whom, and what is transfer."""
