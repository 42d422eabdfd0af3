"""Stand-in packages under the vendors' names, for the lab's mirror and bases."""
