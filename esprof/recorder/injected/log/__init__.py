"""The notes of a process, the thread that writes them, and the fuse that ends recording."""
