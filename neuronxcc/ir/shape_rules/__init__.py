"""The rules of `shapes`, by family, and what they check with."""
