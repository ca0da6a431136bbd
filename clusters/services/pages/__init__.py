"""The pages of services."""
