"""HTTP in an unprivileged process of its own: metrics, API, events and the page."""
