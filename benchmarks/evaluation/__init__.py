"""memsampd on the questions of the phase-guided papers, against exact references."""
