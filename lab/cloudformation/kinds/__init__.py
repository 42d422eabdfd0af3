"""How each type of resource is made: by the lab's own API."""
