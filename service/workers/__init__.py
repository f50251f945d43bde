"""Workers: registration, listing, and their compatibility with studies. Leases live in `leasing`."""
