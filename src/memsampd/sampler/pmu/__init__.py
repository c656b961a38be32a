"""What a CPU's performance monitoring unit samples and counts."""
