"""Results of studies: read and export them."""
