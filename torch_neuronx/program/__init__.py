"""The loader: programs to machine code and the native executor, for whoever has one to run."""
