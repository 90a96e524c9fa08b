"""ESP3xx: communication. A file for each rule: exposed, small, late, slow and queued collectives."""
