"""The steps of programs, a file for each kind or two that belong together."""
