"""Operations on studies: create, read, act, extend, follow. Leases of their runs live in `leasing`."""
