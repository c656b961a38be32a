"""When it is worth observing: windows, branch vectors, phases, prediction and the schedule."""
