"""Real programs to run shadows of: what they are, what they need, how they are started."""
