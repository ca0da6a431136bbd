"""What the portal promises in numbers, measured on the real thing: `make bench`.

The whole portal runs as `manage.py up` starts it, with 10,000 clusters of 500 appcodes in its database; requests go through
the gateway like anybody's. Each number stands beside a floor, measured in the same run on the same machine: what the least
program that does a comparable job needs. So a slow or busy machine shows in both, and the ratio tells about the portal.
"""
