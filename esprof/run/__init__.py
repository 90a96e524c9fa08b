"""The Run and everything that reads or writes one."""
