"""What fits together: rules over facts, and the nearest combination that works."""
