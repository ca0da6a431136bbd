"""Dashboards, a module a page: what was used over time, what of it for nothing, of what there was, and what does not fit; and one
segment with the sightings and the lines of the ledger behind it. Administrators see everybody's, others that of their appcodes.
"""
