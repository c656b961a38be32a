"""What is observed: branch samples, access bursts and the access clock of a live process."""
