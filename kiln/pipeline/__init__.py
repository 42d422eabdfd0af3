"""From a recipe to a verified AMI: plan, bake, verify, record."""
