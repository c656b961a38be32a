"""What the observations mean: reuse histograms, survival functions and miss-ratio curves."""
