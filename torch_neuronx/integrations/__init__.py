"""What makes other libraries more comfortable on the device, which run without."""
