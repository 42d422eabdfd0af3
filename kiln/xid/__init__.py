"""Xid and SXid events off the machine: the catalogue and the parser."""
