"""What processes that use the device say about themselves, in a file each.

`layout.inc` is the table of the file's parts, which the native core includes; `place` says where
the files are, `reader` reads one, `processes` all.
"""
