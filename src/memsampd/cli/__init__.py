"""The command line; only :func:`memsampd.cli.main.main` prints errors and exits."""
