"""Which traffic a run's tasks have: each other, DNS, the gateway, and the servers of their own datastores. Pure.

Rules of NetworkPolicies; what no rule names is closed. NFS and volumes are mounted by the node, to which no policy applies.
Policies know addresses and no names, so an S3 server that is given by its name is a port of any address outside the networks
that an administrator closed. One inside the cluster is a pod, which many networks do not count among addresses: its
namespace has to be opened by an administrator.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from clusters.clouds.base import CloudRefused, Plan, S3Source
from clusters.clouds.kubernetes import names
from clusters.clouds.kubernetes.settings import Settings

Rule = dict[str, Any]

_INSIDE = re.compile(r"[^.]+\.([^.]+)\.svc(\.[a-z0-9.-]+)?")
_ANY = ("0.0.0.0/0", "::/0")


def dns(settings: Settings) -> Rule:
    to: list[Rule] = [{**_namespace("kube-system"), "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]
    to += [{"ipBlock": {"cidr": network}} for network in settings.dns_addresses]
    return {"to": to, "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}


def same_run(plan: Plan, settings: Settings) -> Rule:
    return {"matchLabels": names.run_selector(settings.portal, plan.run)}


def ingress(plan: Plan, settings: Settings) -> list[Rule]:
    rules: list[Rule] = [{"from": [{"podSelector": same_run(plan, settings)}]}]
    if settings.gateway_namespace:
        port = {"port": names.PORT, "protocol": "TCP"}
        rules.append({"from": [_namespace(settings.gateway_namespace)], "ports": [port]})
    return rules


def egress(plan: Plan, settings: Settings) -> list[Rule]:
    """Tasks of a run reach each other on any port; of a datastore only what it names."""
    rules: list[Rule] = [{"to": [{"podSelector": same_run(plan, settings)}]}]
    servers = {_server(mount.source) for mount in plan.mounts if isinstance(mount.source, S3Source)}
    return rules + [_to(host, port, settings) for host, port in sorted(servers)]


def check(plan: Plan, settings: Settings) -> None:
    """Raises CloudRefused for a server that tasks would never reach."""
    for mount in plan.mounts:
        if not isinstance(mount.source, S3Source):
            continue
        host, _ = _server(mount.source)
        inside, address = _INSIDE.fullmatch(host), _address(host)
        if inside and inside[1] not in settings.storage_namespaces:
            raise CloudRefused(
                f"Tasks may not reach {host}: ask an administrator to open namespace {inside[1]} for storage, or use a "
                "server outside the Kubernetes cluster."
            )
        if address and any(address in ipaddress.ip_network(network) for network in settings.closed_networks):
            raise CloudRefused(f"Tasks may not reach {host}: an administrator closed its network.")


def _to(host: str, port: int, settings: Settings) -> Rule:
    ports = [{"port": port, "protocol": "TCP"}]
    if inside := _INSIDE.fullmatch(host):
        # A policy sees the pod's port, which may be another than the Service's.
        return {"to": [_namespace(inside[1])]}
    if address := _address(host):
        return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}
    return {"to": [_all_but(network, settings) for network in _ANY], "ports": ports}


def _all_but(network: str, settings: Settings) -> Rule:
    version = ipaddress.ip_network(network).version
    closed = [each for each in settings.closed_networks if ipaddress.ip_network(each).version == version]
    return {"ipBlock": {"cidr": network, **({"except": closed} if closed else {})}}


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _server(source: S3Source) -> tuple[str, int]:
    """Host and port; a source without an address is Amazon's own, at 443."""
    url = urlsplit(source.endpoint)
    return (url.hostname or "").rstrip("."), url.port or (80 if url.scheme == "http" else 443)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
