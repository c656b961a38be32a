"""Following a thread's code from a sample's registers, on memory that is only read."""
