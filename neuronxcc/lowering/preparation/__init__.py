"""Stage 1: rewrites of the graph to operators for which the next stages have a form."""
