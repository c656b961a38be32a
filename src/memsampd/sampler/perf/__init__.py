"""What perf_event_open(2) gives without a PMU: a stream of sampled instruction addresses."""
