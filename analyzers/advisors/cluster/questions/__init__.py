"""Questions on several jobs whose answers are whole devices, servers, slices or hours."""
