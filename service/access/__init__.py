"""Permissions and limits: keys, scopes, projects, quotas, the retuning budget. HTTP responses live in `http`."""
