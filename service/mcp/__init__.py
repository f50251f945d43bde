"""Tools, resources and prompts for coding agents over the Model Context Protocol (MCP): on stdio for one user, and
mounted in the service. A tool calls the functions that the command line and the REST API call, and computes nothing of
its own.
"""
