"""One file per backend; `base` holds what they share and chooses among them."""
