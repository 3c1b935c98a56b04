"""Names that the documents of NKI have moved on from."""

from nki.language.control import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]
