"""What goes wrong with an estimate."""


class EstimateError(Exception):
    """A program that cannot be timed; the text says why and what to do."""
