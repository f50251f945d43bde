"""Parts of the first page: cards of tuning targets, and an example for a service without any."""
