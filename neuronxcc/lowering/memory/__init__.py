"""Stages 3 and 6: storages that share memory, and where temporaries lie in the scratchpad."""
