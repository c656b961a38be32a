"""Exact references: what caches of every size would have missed in whole runs of real programs."""
