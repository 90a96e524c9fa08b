"""ESP4xx: host and launch. A file for each rule: starved GPUs, synchronisation, Python code, lack of CPUs."""
