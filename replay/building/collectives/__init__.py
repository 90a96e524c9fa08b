"""Collectives: match calls across ranks (`matching`), separate waiting from communication (`rendezvous`), make their nodes
(`nodes`), and handle those on gloo's threads (`gloo`)."""
