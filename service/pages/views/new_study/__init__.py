"""Form of a new study, and the calculator beside it."""
