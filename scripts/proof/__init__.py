"""What scripts/prove tries, and how."""
