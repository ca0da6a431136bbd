"""Networks that tasks cannot reach on any cloud: the surroundings of a machine or cluster are not for its tenants."""

from __future__ import annotations

# Private networks: nodes, pods, services and other servers of an operator. The NAT64 prefix maps all of IPv4, private addresses
# included.
PRIVATE = (
    "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "64:ff9b::/96",
)  # fmt: skip
# The machine itself and the metadata services of cloud providers (as in portal/network/outgoing.py), including Azure's public
# address.
NEAR = (
    "127.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
    "::1/128", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128",
)  # fmt: skip
