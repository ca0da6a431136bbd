"""An administrator's description of a Kubernetes cluster: its manifest as one typed and validated value.

    {"kind": "kubernetes-cluster", "metadata": {"name": "training"},
     "spec": {"title": "Training", "kubeconfig": "apiVersion: v1 …", "default": true, "settings": {"runtime_class": "nvidia"}}}

The form, a REST body and `manage.py register_kubernetes` all become a `KubernetesManifest`. A kubeconfig is write-only;
`drivers/kubernetes/api/kubeconfig.py` decides whether it is safe.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import orjson
from django.utils.crypto import salted_hmac
from pydantic import AfterValidator, ConfigDict, Field, SecretStr, StringConstraints, model_validator

from clusters.cloud_admin.actions import KEEP, Wanted
from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.kinds import OWN
from clusters.clouds.models import Cloud
from portal.errors import Invalid
from portal.manifests import Manifest, Strict, dns_label, field_error, parse
from portal.manifests.appcode import Line


def _not_own(value: str) -> str:
    if value in OWN:
        raise ValueError(f"“{value}” is the portal's own machine; choose another name.")
    return value


CloudName = Annotated[
    str, StringConstraints(min_length=1, max_length=40), AfterValidator(dns_label), AfterValidator(_not_own)
]


class KubernetesMetadata(Strict):
    name: CloudName


class KubernetesSpec(Strict):
    """How a cluster is reached (by a kubeconfig, or with the service account of the portal's pod) and its settings. A change
    that gives neither keeps the stored one."""

    model_config = ConfigDict(hide_input_in_errors=True)

    title: Annotated[Line, StringConstraints(max_length=100)] = Field(
        default="", description="As people call it; the name when it is empty."
    )
    kubeconfig: SecretStr | None = Field(
        default=None,
        max_length=256 * 1024,
        description="YAML or JSON with everything in it: no files, no programs. Only the context that is used is kept.",
    )
    context: Annotated[Line, StringConstraints(max_length=300)] = Field(
        default="", description="Of the kubeconfig; its current one when empty."
    )
    in_cluster: bool = Field(default=False, description="Use the service account of the pod that the portal runs in.")
    insecure: bool = Field(
        default=False,
        description="Let a kubeconfig pass that does not check the server's certificate. Only for trying out.",
    )
    enabled: bool = Field(default=True, description="Whether it takes new runs; existing runs continue.")
    default: bool = Field(default=False, description="Whether business lines without a cloud of their own use it.")
    settings: Settings = Settings()
    prometheus_token: SecretStr | None = Field(
        default=None,
        max_length=16 * 1024,
        description="A bearer token for the Prometheus of the settings. It goes in and never comes out; without it the one that "
        "is stored is kept as long as the address stays, and an empty one takes it away.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        token = self.prometheus_token.get_secret_value() if self.prometheus_token else ""
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise field_error("A token is one line without spaces.", "prometheusToken")
        if token and not self.settings.prometheus:
            raise field_error("Give the address of Prometheus in the settings, too.", "prometheusToken")
        if self.in_cluster and self.kubeconfig is not None:
            raise field_error("Give either a kubeconfig or this.", "inCluster")
        return self


class KubernetesManifest(Manifest):
    """`{"kind": "kubernetes-cluster", "metadata": {"name"}, "spec": {…}}`."""

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: Literal["kubernetes-cluster"] = "kubernetes-cluster"
    metadata: KubernetesMetadata
    spec: KubernetesSpec

    def wanted(self, row: Cloud | None) -> Wanted:
        """Implements `actions.CloudManifest`."""
        spec = self.spec
        if row is None and spec.kubeconfig is None and not spec.in_cluster:
            raise Invalid.at(
                "spec", "kubeconfig", message="Give a kubeconfig, or choose the portal's own service account."
            )
        config = kubeconfig_of(spec)
        settings, label = spec.settings, own_label() if row is None else str(row.settings.get("portal", ""))
        # Rows older than the setting have no label.
        if settings.portal == Settings().portal and label:
            settings = replace(settings, portal=label)
        token = spec.prometheus_token
        return Wanted(
            name=self.metadata.name,
            kind=KubernetesCloud.kind,
            title=spec.title,
            settings=settings.json_value(),
            enabled=spec.enabled,
            default=spec.default,
            server=kubeconfig.address(config) if config else "",
            credentials=orjson.dumps(config).decode() if config else None if spec.in_cluster else KEEP,
            credentials_field="kubeconfig",
            prometheus_token=KEEP if token is None else token.get_secret_value() or None,
        )


def read_manifest(body: Any, *, name: str | None = None) -> KubernetesManifest:
    """Parses a request body; `name` is the name in the URL. Raises Invalid, whose sentences never quote the body."""
    return parse(KubernetesManifest, body, **({} if name is None else {"name": name}))


def kubeconfig_of(spec: KubernetesSpec) -> dict[str, Any] | None:
    """Returns the kubeconfig to store, or None. Raises Invalid."""
    if spec.kubeconfig is None:
        return None
    try:
        return kubeconfig.read(spec.kubeconfig.get_secret_value(), spec.context, insecure=spec.insecure)
    except kubeconfig.Unusable as error:
        raise Invalid.at("spec", "kubeconfig", message=str(error)) from None


def own_label() -> str:
    """Returns the default portal label for a new cluster. It differs between installations, so that two portals on one cluster
    do not take each other's objects for their own."""
    return f"{Settings().portal}-{salted_hmac('gpu-cloud/portal', '').hexdigest()[:8]}"
