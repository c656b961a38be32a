"""memsampd: phases and miss-ratio curves of any running Linux process."""

__version__ = "0.1.0"
