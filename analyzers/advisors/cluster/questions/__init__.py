"""Questions on several jobs whose answers are whole devices, servers or slices."""
