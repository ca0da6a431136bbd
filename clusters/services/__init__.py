"""Services answer for versions of a model at one address while the versions change."""
