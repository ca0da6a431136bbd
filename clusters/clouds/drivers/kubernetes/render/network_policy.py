"""The network policy of a run's tasks: each other, DNS, the gateway, and the servers of their datastores and code. Pure.

Everything without a rule is closed. The node mounts NFS and volumes, and policies do not apply to it. Policies match addresses,
not names, so an S3 server given by name opens its port on all public addresses. Private addresses belong to nodes, the API
server, pods, services and other servers of the operator: tasks reach only those that an administrator opened for storage, by
name or by number, and the portal's own object storage. A server inside the cluster is a pod, which many network plugins do not
match by address, so an administrator must open its namespace.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from clusters.clouds.drivers.base import CloudRefused, CodeCommit, Plan, S3Source
from clusters.clouds.drivers.closed_networks import PRIVATE
from clusters.clouds.drivers.kubernetes.render import endpoints, names
from clusters.clouds.drivers.kubernetes.settings import Settings

Rule = dict[str, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_INSIDE = re.compile(r"[^.]+\.([^.]+)\.svc(\.[a-z0-9.-]+)?")
_ANY = ("0.0.0.0/0", "::/0")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def dns(settings: Settings) -> Rule:
    to: list[Rule] = [{**_namespace("kube-system"), "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]
    to += [{"ipBlock": {"cidr": network}} for network in settings.dns_addresses]
    return {"to": to, "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}


def same_run(plan: Plan, settings: Settings) -> Rule:
    return {"matchLabels": names.run_selector(settings.portal, plan.run)}


def ingress(plan: Plan, settings: Settings) -> list[Rule]:
    rules: list[Rule] = [{"from": [{"podSelector": same_run(plan, settings)}]}]
    found = [(each, endpoints.ports(role)[each.name]) for role in plan.roles for each in role.endpoints]
    outside = sorted({port for each, port in found if each.origin})
    inside = sorted({port for each, port in found if not each.origin})
    if settings.gateway_namespace and outside:
        gateway = _namespace(settings.gateway_namespace)
        if settings.gateway_pods:
            gateway["podSelector"] = {"matchLabels": dict(settings.gateway_pods)}
        rules.append({"from": [gateway], "ports": _tcp(outside)})
    # Only routers reach replicas of services. Without a namespace of their own they run in the gateway's.
    routers = settings.router_namespace or settings.gateway_namespace
    if routers and inside:
        rules.append({"from": [_namespace(routers)], "ports": _tcp(inside)})
    return rules


def egress(plan: Plan, settings: Settings) -> list[Rule]:
    """Returns the rules for outgoing traffic: tasks of the run on any port, servers of datastores and code, the package index,
    tracking."""
    rules: list[Rule] = [{"to": [{"podSelector": same_run(plan, settings)}]}]
    servers = {_server(endpoint) for endpoint, _ in _endpoints(plan)}
    rules += [_to(host, port, settings) for host, port in sorted(servers)]
    # Naming a server here opened it. In a namespace this opens the port of its pods only.
    for host, port in sorted({_server(each) for each in (settings.package_index, settings.tracking) if each}):
        rules.append({**_to(host, port, settings), "ports": [{"port": port, "protocol": "TCP"}]})
    return rules


def check(plan: Plan, settings: Settings) -> None:
    """Raises CloudRefused for a server that tasks could not reach."""
    for endpoint, own in _endpoints(plan):
        if sentence := why_closed(endpoint, settings, own=own):
            raise CloudRefused(sentence)


def _endpoints(plan: Plan) -> list[tuple[str, bool]]:
    """Returns the servers of data and code, and whether each is the portal's own object storage."""
    sources = [mount.source for mount in plan.mounts if isinstance(mount.source, S3Source)]
    stores = [(source.endpoint, source.own) for source in sources]
    return [*stores, (plan.code.url, False)] if isinstance(plan.code, CodeCommit) else stores


def why_closed(endpoint: str, settings: Settings, *, own: bool = False) -> str:
    """Returns why tasks cannot reach a server, or "", without resolving its name. `own`: the portal's own object storage, which
    its operator opened, at its port only."""
    host, _ = _server(endpoint)
    if not own and (inside := _INSIDE.fullmatch(host)) and inside[1] not in settings.storage_namespaces:
        return (
            f"Tasks may not reach {host}: ask an administrator to open namespace {inside[1]} for storage, or use a "
            "server outside the Kubernetes cluster."
        )
    address = _address(host)
    if address and _in(address, settings.closed_networks):
        return f"Tasks may not reach {host}: an administrator closed its network."
    if not own and address and _in(address, PRIVATE) and not _in(address, settings.storage_networks):
        return (
            f"Tasks may not reach {host}: ask an administrator to open this address among the networks with storage of the "
            "Kubernetes cluster."
        )
    return ""


def _to(host: str, port: int, settings: Settings) -> Rule:
    ports = [{"port": port, "protocol": "TCP"}]
    if inside := _INSIDE.fullmatch(host):
        # Policies match the pod's port, which may differ from the Service's.
        return {"to": [_namespace(inside[1])]}
    if address := _address(host):
        return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}
    public = [_all_but(network, (*settings.closed_networks, *PRIVATE)) for network in _ANY]
    return {
        "to": public + [_all_but(each, settings.closed_networks) for each in settings.storage_networks],
        "ports": ports,
    }


def _all_but(network: str, closed: Iterable[str]) -> Rule:
    """Returns a block for `network` except the `closed` networks within it; an `except` may only contain those."""
    whole = ipaddress.ip_network(network)
    inside = sorted({each for each in map(ipaddress.ip_network, closed) if _is_within(each, whole)}, key=str)
    return {"ipBlock": {"cidr": network, **({"except": [str(each) for each in inside]} if inside else {})}}


def _is_within(one: Network, other: Network) -> bool:
    return one.version == other.version and one != other and one.subnet_of(other)  # type: ignore[arg-type]


def _in(address: Address, networks: Iterable[str]) -> bool:
    return any(address in ipaddress.ip_network(each) for each in networks)


def _tcp(ports: Iterable[int]) -> list[Rule]:
    return [{"port": each, "protocol": "TCP"} for each in ports]


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _server(endpoint: str) -> tuple[str, int]:
    """Returns host and port; a source without an address is Amazon's, at 443."""
    url = urlsplit(endpoint)
    return (url.hostname or "").rstrip("."), url.port or (80 if url.scheme == "http" else 443)


def _address(host: str) -> Address | None:
    """Parses an address; an IPv6 address that embeds an IPv4 address becomes that address."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            return ipaddress.IPv4Address(found.packed[-4:])
        return found.ipv4_mapped or found
    return found
