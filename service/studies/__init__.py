"""Operations on studies: create, read, act, extend, follow. `leasing` leases their runs to workers."""
