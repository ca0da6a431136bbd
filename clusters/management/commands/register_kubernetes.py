"""Registers a Kubernetes cluster, or updates the one of that name. Repeating the command changes nothing.

manage.py register_kubernetes main --in-cluster --default
manage.py register_kubernetes training --kubeconfig training.yaml --context admin --business-line example.ops
"""

from __future__ import annotations

import base64
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import CommandError
from django.db import transaction

from clusters.cloud_admin import actions
from clusters.cloud_admin.manifest import KubernetesManifest, read_manifest
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.models import Cloud
from portal.errors import Conflict, Invalid
from portal.management.described import DescribedCommand
from portal.models import OrgNode

# Where Kubernetes mounts a pod's own namespace.
NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Files that a kubeconfig may refer to. Their content is embedded: whoever runs this command may read them.
FILES = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
    "tokenFile": "token",
}


class Command(DescribedCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what manifests and runs call it, e.g. training")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--kubeconfig", metavar="FILE", help="how it is reached; - reads standard input")
        how.add_argument("--in-cluster", action="store_true", help="by the service account of this pod")
        parser.add_argument("--context", default="", help="of the kubeconfig; its current one when absent")
        parser.add_argument("--insecure", action="store_true", help="the server's certificate need not be checked")
        parser.add_argument("--title", help="as people call it")
        parser.add_argument(
            "--default",
            action="store_true",
            help="business lines run here that are placed nowhere, unless there is another default already",
        )
        parser.add_argument("--business-line", metavar="PATH", action="append", default=[], help="place this one here")
        parser.add_argument(
            "--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, its value in YAML"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        row = Cloud.objects.filter(name=options["name"], kind=KubernetesCloud.kind).first()
        try:
            manifest = self._manifest(row, options)
            # All lines or none. The cluster stays registered, so that the next start can continue.
            row = (
                actions.change(row, manifest, acting_user=None) if row else actions.register(manifest, acting_user=None)
            )
            with transaction.atomic():
                for line in _lines(options["business_line"]):
                    actions.place(line, row.name, acting_user=None)
        except (Invalid, Conflict) as error:
            raise CommandError(str(error)) from error
        report = actions.try_connection(row)
        (self.stdout if report.ok else self.stderr).write(f"{row.name}: {report.message}")

    def _manifest(self, row: Cloud | None, options: dict[str, Any]) -> KubernetesManifest:
        """The manifest, with current values for everything that the options omit."""
        spec: dict[str, Any] = {"settings": Settings.readable(row.settings).json_value() if row else {}}
        if row:
            spec |= {"title": row.title, "enabled": row.enabled, "default": row.is_default}
        spec["settings"] |= dict(_setting(each) for each in options["set"])
        if options["in_cluster"] and not spec["settings"].get("router_namespace"):
            # Routers run in the portal's namespace.
            spec["settings"]["router_namespace"] = _own_namespace()
        if options["title"]:
            spec["title"] = options["title"]
        if options["default"] and not Cloud.objects.filter(is_default=True).exists():
            spec["default"] = True
        if options["kubeconfig"]:
            spec |= {
                "kubeconfig": _kubeconfig(options["kubeconfig"]),
                "context": options["context"],
                "insecure": options["insecure"],
            }
        return read_manifest({"spec": {**spec, "inCluster": options["in_cluster"]}}, name=options["name"])


def _own_namespace() -> str:
    """The namespace of this pod; "" outside a pod."""
    return NAMESPACE.read_text().strip() if NAMESPACE.is_file() else ""


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--set {text}: write NAME=VALUE.")
    try:
        return name, yaml.safe_load(value) if value else ""
    except yaml.YAMLError as error:
        raise CommandError(f"--set {text}: the value is not YAML.") from error


def _kubeconfig(file: str) -> str:
    """The text of the file, with the content of the files that it names embedded."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        found = yaml.safe_load(text)
        for inner in _parts(found):
            for key in FILES.keys() & inner.keys():
                path = Path(file).parent / str(inner[key])
                if path.is_file():
                    data = path.read_bytes()
                    inner[FILES[key]] = data.decode().strip() if key == "tokenFile" else base64.b64encode(data).decode()
                    del inner[key]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"The kubeconfig cannot be read: {error}") from error
    return yaml.safe_dump(found)


def _parts(found: Any) -> Iterator[dict[str, Any]]:
    """The clusters and users of a kubeconfig. Tolerates any other content."""
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        items = found.get(plural) if isinstance(found, dict) else None
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict) and isinstance(item.get(singular), dict):
                yield item[singular]


def _lines(paths: list[str]) -> list[OrgNode]:
    nodes = {node.path: node for node in OrgNode.objects.filter(path__in=paths)}
    if missing := [path for path in paths if path not in nodes]:
        raise CommandError(f"There is no business line {', '.join(missing)}.")
    return [nodes[path] for path in paths]
