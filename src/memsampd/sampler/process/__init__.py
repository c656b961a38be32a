"""Facts about a process, read from /proc: who it is, where its code lies, whether to attach."""
