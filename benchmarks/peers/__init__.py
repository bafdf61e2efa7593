"""What ours is measured against. A peer that is not installed is None: its figures are nulls."""
