"""GPU streams, and what their work and the runtime's calls wait for."""
