"""Several cores' recordings as one; see `nki.merge`."""
