"""amis.yaml: its schema, its recipes, and the selection among them."""
