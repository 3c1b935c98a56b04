"""Programs, the NEFF files that hold them, and the cache of compiled ones."""
