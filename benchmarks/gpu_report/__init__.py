"""What a GPU host proves: the steps of `make test-gpu`, what they mean, and the report."""
