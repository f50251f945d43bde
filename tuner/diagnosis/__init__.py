"""What a diagnosis points to: known mistakes, and the changes that would answer them."""
