"""Connections that the portal makes: which are allowed, and how few wait for a silent server."""
