"""The cache of compiled programs: what was compiled once is loaded from then on."""
