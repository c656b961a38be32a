"""Bursts from a replica: a process of ours that stands in for the target (docs/replica.md)."""
