"""From windows and bursts to curves, live and from recordings alike: one estimator."""
