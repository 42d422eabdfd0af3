"""Root filesystems: the distributions and parents that guests start from."""
