"""How a request comes in: who may call, injected failures, refusals; and the metadata service."""
