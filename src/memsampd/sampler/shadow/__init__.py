"""Bursts from a shadow: a disposable copy-on-write child of the target, executed in its place."""
