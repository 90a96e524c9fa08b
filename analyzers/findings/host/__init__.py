"""ESP4xx: host and launch."""
