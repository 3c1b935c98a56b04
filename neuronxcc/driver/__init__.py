"""The module path by which Python programs start the vendor's compiler; so they start this one."""
