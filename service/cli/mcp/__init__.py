"""Tools for coding agents on this machine: the functions of the command line behind the MCP server."""
