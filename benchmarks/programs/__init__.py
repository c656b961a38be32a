"""Real programs to observe: what they are, what they need, how they are started."""
