"""What is kept of programs: their phases and bursts, known again when they run again."""
