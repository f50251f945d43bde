"""Changes from what the user has today to the recommended configuration: in the user's own file, with their effects."""
