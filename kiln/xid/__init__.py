"""Xid and SXid events on any machine: the catalog and the parser."""
