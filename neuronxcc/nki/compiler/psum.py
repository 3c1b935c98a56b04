"""Addresses of tiles in PSUM."""

from nki.first_generation.compiler.psum import *  # noqa: F403 (what it exports)
