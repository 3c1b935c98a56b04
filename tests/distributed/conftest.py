"""The fixtures of these tests."""

from tests.isas import isa

__all__ = ["isa"]
