"""Runs NEFF files for callers that have NumPy arrays; `nrtpy` is its public face."""
