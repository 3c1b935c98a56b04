"""What works here and not with the real compiler: checks of a kernel's Python."""
