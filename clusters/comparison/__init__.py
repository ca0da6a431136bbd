"""Compares runs, for the page and REST."""
