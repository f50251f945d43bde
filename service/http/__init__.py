"""Everything HTTP that belongs to no noun: errors, paging, ETags, idempotent requests, input at the border."""
