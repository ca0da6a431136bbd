"""Services: versions of models that answer at one address while they change."""
