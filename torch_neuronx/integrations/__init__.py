"""What makes other libraries more comfortable on the device; none of it is needed to use them there."""
