"""A simulated machine with its own internet, for the calling process: two network namespaces that nothing leaves.

`become` puts the caller on the machine, 10.20.0.2 behind the router 10.20.0.1, and starts its servers: all addresses answer at
port 80, on the machine as in the world around it. Needs root.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

from clusters.clouds.drivers.local.task import sandbox

MINE = ("10.20.0.2", "203.0.113.99")
ROUTER = "10.20.0.1"
PUBLIC = "203.0.113.7"
PRIVATE = ("10.9.9.9", "172.16.0.9", "192.168.7.7", "100.64.1.1", "169.254.169.254", "168.63.129.16")
NAME_SERVER = "203.0.113.53"


def become(folder: Path) -> None:
    from pyroute2 import IPRoute

    sandbox.enter(sandbox.CLONE_NEWNET | sandbox.CLONE_NEWNS)
    sandbox.mount("none", "/", None, 16384 | 1 << 18)
    device, resolver = folder / "tun", folder / "resolv.conf"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    device.chmod(0o666)  # like udev
    resolver.write_text(f"nameserver {NAME_SERVER}\n")
    for source, target in ((device, "/dev/net/tun"), (resolver, os.path.realpath("/etc/resolv.conf"))):
        sandbox.mount(str(source), target, None, 4096)
    ready, says = os.pipe()
    if (world := os.fork()) == 0:
        sandbox.die_with_parent()
        sandbox.enter(sandbox.CLONE_NEWNET)
        os.write(says, b"!")
        _wait_for("w0")
        with IPRoute() as ip:
            link = ip.link_lookup(ifname="w0")[0]
            for address in (PUBLIC, NAME_SERVER, *PRIVATE):
                ip.addr("add", index=1, address=address, prefixlen=32)
            ip.addr("add", index=link, address=ROUTER, prefixlen=24)
            for each in (1, link):
                ip.link("set", index=each, state="up")
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((NAME_SERVER, 53))
        threading.Thread(target=_resolve, args=(names,), daemon=True).start()
        _serve(says)
    os.read(ready, 1)
    with IPRoute() as ip:
        ip.link("add", ifname="eth0", kind="veth", peer={"ifname": "w0", "net_ns_fd": _net_of(world)})
        link = ip.link_lookup(ifname="eth0")[0]
        for address, prefix in zip(MINE, (24, 32), strict=True):
            ip.addr("add", index=link, address=address, prefixlen=prefix)
        for each in (1, link):
            ip.link("set", index=each, state="up")
        ip.route("add", dst="0.0.0.0/0", gateway=ROUTER)
    if os.fork() == 0:
        sandbox.die_with_parent()
        _serve(says)
    for _ in range(2):
        os.read(ready, 1)


def _net_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)


def _wait_for(name: str) -> None:
    while name not in {each for _, each in socket.if_nameindex()}:
        pass


def _serve(says: int) -> None:
    server = socket.create_server(("0.0.0.0", 80))
    os.write(says, b"!")
    while True:
        server.accept()[0].close()


def _resolve(names: socket.socket) -> None:
    """Answers each DNS query with itself."""
    while True:
        data, asker = names.recvfrom(512)
        names.sendto(data, asker)
