"""EC2's calls as the lab answers them, on top of moto."""
