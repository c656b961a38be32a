"""The composition: targets, budget and life cycle of a profiling session."""
