"""Permissions and limits: keys, scopes, projects, quotas, the retuning budget. `http` converts errors into HTTP
responses.
"""
