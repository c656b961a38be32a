"""The machine under it all: caches, CPU and what this user may do, as data."""
