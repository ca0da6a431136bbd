"""Dashboards, one module per page: usage over time, waste, utilisation, reconciliation, and one segment with its
sightings and ledger lines. Administrators see all appcodes, others their own."""
