"""The access clock: how many accesses a thread makes per second of its CPU time."""
