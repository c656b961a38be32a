"""One daemon for a node: many targets in one process, found by rules."""
