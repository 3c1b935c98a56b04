"""Conveniences for other libraries on the device, which run without them."""
