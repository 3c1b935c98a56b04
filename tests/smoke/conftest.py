"""What these tests share: a compile cache of their own."""

from tests.neff_cache import compile_cache

__all__ = ["compile_cache"]
