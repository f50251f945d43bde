"""Webhooks by the rules of standardwebhooks.com: whom to tell, the secrets, the addresses, the deliveries."""
