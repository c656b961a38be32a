"""Native core of memsampd (see src/memsampd/_core/)."""
