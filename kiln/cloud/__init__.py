"""EC2 as a build meets it: session, parents, resources, machines, permissions."""
