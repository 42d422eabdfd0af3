"""Xid and SXid events on any machine: the catalogue and the parser."""
