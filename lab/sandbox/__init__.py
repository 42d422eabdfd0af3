"""What guests are kept in: namespaces, control groups, the mounts that the lab makes for them."""
