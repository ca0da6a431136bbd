"""`make bench` measures the numbers that the portal promises, on the real programs.

The whole portal runs as `manage.py up` starts it, with 10,000 clusters of 500 appcodes in its database. Requests pass
the gateway, as users' requests do. Each number has a floor, measured in the same run on the same machine: the time that
the smallest program for a comparable job needs. A slow or busy machine raises both, so the ratio judges the portal.

Rooms: the portal on this machine (`portal`), its parts on a control plane (`kubernetes`), and who gets which nodes
(`admission`). What all of them measure with is beside them.
"""
