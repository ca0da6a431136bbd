"""Networks that tasks do not reach, wherever they run: what lies around a machine or a cluster is not for its tenants."""

from __future__ import annotations

# Whoever's own: nodes, pods, services, and whatever else an operator has. Behind the prefix of NAT64 lie all addresses of
# IPv4, the private ones too.
PRIVATE = (
    "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "64:ff9b::/96",
)  # fmt: skip
# The machine itself and the metadata services of clouds (as in portal/outgoing.py), Azure's among public addresses.
NEAR = (
    "127.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
    "::1/128", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128",
)  # fmt: skip
