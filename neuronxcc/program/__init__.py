"""Programs: everything compiles to one, and everything runs one."""
