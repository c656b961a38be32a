"""Where the answers go: Prometheus, recordings, figures, JSON and CSV."""
