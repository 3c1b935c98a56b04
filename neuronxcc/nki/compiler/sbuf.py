"""Addresses of tiles in SBUF."""

from nki.first_generation.compiler.sbuf import *  # noqa: F403 (what it exports)
