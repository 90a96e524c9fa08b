"""Messages of Protocol Buffers, and the profiles that consist of them."""
