"""Entry of a request: permissions, injected failures, refusals; and the metadata service."""
