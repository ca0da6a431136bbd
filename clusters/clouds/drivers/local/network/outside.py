"""Connects the network of one run to the internet, and blocks private addresses: `python -I outside.py PID`.

pasta, started by holder.py, creates an interface with this machine's address in the network of the process PID and forwards its
traffic by ordinary sockets. Routes limit the destinations to public addresses and a virtual name server, whose queries pasta
forwards to this machine's own. Tasks have no right to change routes. IPv4 only.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import time

if not __package__:  # run as a script: the isolated interpreter cannot find its neighbours otherwise
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers import closed_networks
from clusters.clouds.drivers.local.task import sandbox

NAME_SERVER = "169.254.53.53"
# The tasks' /etc/resolv.conf.
RESOLVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "resolv.conf")
PATIENCE = 10.0
FLAGS = (
    "--foreground", "--ipv4-only", "--config-net", "--no-map-gw", "--no-dhcp", "--no-ndp", "--no-ra", "--no-dhcpv6",
    "--tcp-ports=none", "--udp-ports=none", "--tcp-ns=none", "--udp-ns=none", f"--dns-forward={NAME_SERVER}",
)  # fmt: skip


def main(pid: int) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as here:
        own = {address.get_attr("IFA_ADDRESS") for address in here.get_addr(family=socket.AF_INET)}
    sandbox.setns(os.pidfd_open(pid), sandbox.CLONE_NEWNET | (0 if os.geteuid() == 0 else sandbox.CLONE_NEWUSER))
    networks = {each for each in (*closed_networks.PRIVATE, *closed_networks.NEAR) if ":" not in each}
    networks |= {f"{each}/32" for each in own}
    with IPRoute() as inside:
        for network in networks:
            if not ipaddress.ip_network(network).is_loopback:
                inside.route("add", dst=network, type="prohibit")
        end = time.monotonic() + PATIENCE
        while not (out := inside.get_default_routes(family=socket.AF_INET)):
            if time.monotonic() > end:
                sys.exit("pasta made no way out")
            time.sleep(0.01)
        link = out[0].get_attr("RTA_OIF")
        inside.route("add", dst=f"{NAME_SERVER}/32", oif=link, scope="link")
        # This machine's network may be private, so its route is removed; the gateway needs no route.
        for route in inside.get_routes(family=socket.AF_INET, oif=link, table=254):
            network = route.get_attr("RTA_DST")
            if network not in (None, NAME_SERVER):
                same = {name: route[name] for name in ("scope", "proto")}
                inside.route("del", dst=f"{network}/{route['dst_len']}", oif=link, **same)


if __name__ == "__main__":
    main(int(sys.argv[1]))
