"""Which clouds there are, by the names that runs keep: "local" is this machine, every other one a row of KubernetesCluster.

The only place where rows become clouds. A cloud object is kept as long as its row says the same of how it is reached, so a
changed kubeconfig is used by every running process from its next call on.
"""

from __future__ import annotations

from collections.abc import Hashable

import orjson
from django.conf import settings
from django.db.models import Exists, OuterRef, Q
from pydantic import ValidationError

from clusters.clouds.drivers.base import Cloud, CloudError, RunRef, SourceKind
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.preflight import uid_of
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.local.client import LocalCloud
from clusters.models import LOCAL, KubernetesCluster, Run

_kept: dict[str, tuple[Hashable, Cloud]] = {}


def cloud(name: str) -> Cloud:
    """The cloud of that name; the object is shared by all threads. Raises CloudError when there is none. At most two queries."""
    version = _version(name)
    kept = _kept.get(name)
    if kept is None or kept[0] != version:
        # Two threads may both make one; the later stays, and either works.
        kept = _kept[name] = (version, _make(name))
    return kept[1]


def cloud_of(run: Run) -> Cloud:
    """Where the run was made: it stays there, whatever is placed elsewhere since."""
    return cloud(run.cloud)


def run_ref(run: Run) -> RunRef:
    """What the cloud calls the run; its cluster and appcode must be there."""
    return RunRef(run.pk, run.namespace, run.cluster.appcode.code, run.cluster.name, run.number)


def cloud_names() -> list[str]:
    """Every cloud that can be asked, this machine first. One query."""
    names = KubernetesCluster.objects.order_by("name").values_list("name", flat=True)
    return [*([LOCAL] if settings.LOCAL_CLOUD_SOCKET else []), *names]


def followed() -> dict[str, Hashable]:
    """Every cloud of which news are wanted, with what changes when it is reached in another way. One query.

    One that was given up is among them: what lived there is to be ended should it come back.
    """
    alive = Exists(Run.objects.filter(cloud=OuterRef("name"), gone=False))
    rows = KubernetesCluster.objects.filter(Q(enabled=True) | Q(given_up_at__isnull=False) | alive).order_by("name")
    found: dict[str, Hashable] = {LOCAL: settings.LOCAL_CLOUD_SOCKET} if settings.LOCAL_CLOUD_SOCKET else {}
    return found | {name: (pk, revision) for pk, name, revision in rows.values_list("pk", "name", "revision")}


def _version(name: str) -> Hashable:
    if name == LOCAL:
        version: Hashable = settings.LOCAL_CLOUD_SOCKET
    else:
        version = KubernetesCluster.objects.filter(name=name).values_list("pk", "revision").first()
    if not version:
        raise _absent(name)
    return version


def _make(name: str) -> Cloud:
    if name == LOCAL:
        return LocalCloud(settings.LOCAL_CLOUD_SOCKET)
    row = KubernetesCluster.objects.filter(name=name).first()
    if row is None:
        raise _absent(name)
    return connect(name, row.kubeconfig, row.settings, row.prometheus_token or "")


def _absent(name: str) -> CloudError:
    return CloudError(f"This portal has no cloud “{name}” any more; an administrator can register it again.")


def connect(name: str, kubeconfig: str | None, stored: dict[str, object], token: str = "") -> KubernetesCloud:
    """A cloud from what a row says; `token` is that of its Prometheus. Raises CloudError."""
    try:
        wanted = Settings.read(stored)
    except ValidationError as error:
        raise CloudError(f"The settings of {name} are not understood; an administrator can save them again.") from error
    return KubernetesCloud(client(name, kubeconfig), wanted, name, token)


def client(name: str, kubeconfig: str | None) -> Client:
    """A client from what a row says, or would say. Raises CloudError."""
    try:
        return Client.connect(orjson.loads(kubeconfig) if kubeconfig else "")
    except orjson.JSONDecodeError as error:
        raise CloudError(f"The kubeconfig of {name} cannot be decrypted: was PORTAL_SECRET_KEY changed?") from error


def identify(name: str) -> None:
    """Writes down which Kubernetes cluster it is that is followed under this name, unless that is known. Raises CloudError."""
    row = KubernetesCluster.objects.filter(name=name, uid="").first()
    if row is not None:
        uid = uid_of(client(name, row.kubeconfig))
        KubernetesCluster.objects.filter(pk=row.pk, revision=row.revision, uid="").update(uid=uid)


def mounts(name: str) -> frozenset[SourceKind]:
    """The kinds of data that tasks there can mount."""
    return LocalCloud.mounts if name == LOCAL else KubernetesCloud.mounts


def longest_address(name: str) -> int:
    """How many characters the address of a task there has at most."""
    return LocalCloud.longest_address if name == LOCAL else KubernetesCloud.longest_address


def keeps_logs(name: str) -> bool:
    """Whether logs there outlive their pods."""
    return LocalCloud.keeps_logs if name == LOCAL else KubernetesCloud.keeps_logs
