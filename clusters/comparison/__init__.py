"""Runs side by side, below the page and the REST of it."""
