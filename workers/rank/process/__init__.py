"""What keeps a rank alive or ends it, and what must be built before it. Knows no model."""
