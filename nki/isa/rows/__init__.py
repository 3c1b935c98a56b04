"""The rows of the instruction table, a file per family."""
