"""What the tests of traced models share: a compile cache of their own."""

from tests.neff_cache import compile_cache

__all__ = ["compile_cache"]
