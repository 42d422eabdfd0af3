"""EC2: the target's protocol, clients, parent AMIs, a run's resources, instances, permissions."""
