"""Stage 5: the order of the drafts, and which collectives run beside them."""
