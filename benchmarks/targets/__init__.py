"""What cost and answers are measured on: programs of fixed work, servers under load, memsampd."""
