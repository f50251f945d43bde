"""Workers: registration, listing, and their compatibility with studies. `leasing` leases runs to workers."""
