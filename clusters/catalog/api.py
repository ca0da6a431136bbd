"""REST: flavors and images. Everyone who creates clusters can read them, administrators can write them. Entries are
never deleted, because runs and bills refer to them: `enabled: false` withdraws the offer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from django.http import Http404
from drf_spectacular.utils import OpenApiExample
from pydantic import AfterValidator, Field, StringConstraints
from pydantic.alias_generators import to_camel
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.admission.demand import GPU
from clusters.catalog.actions import Offer, save_offer
from clusters.catalog.documents import (
    FlavorDocument,
    FlavorPage,
    ImageDocument,
    ImagePage,
    flavor_document,
    image_document,
)
from clusters.catalog.models import Flavor, Image
from clusters.frameworks import INSTALLED
from portal.api.operations import Document, created, operation
from portal.api.pagination import everything
from portal.api.views import administrator, person
from portal.errors import Invalid
from portal.manifests import Strict, parse
from portal.manifests.appcode import Line
from portal.models import User

# Maximum of the database column.
LARGEST = 2**31 - 1


def _known(framework: str) -> str:
    if framework not in INSTALLED:
        raise ValueError(f"There is no framework “{framework}”; one of {', '.join(sorted(INSTALLED))}.")
    return framework


class FlavorSpec(Strict):
    """A size of task."""

    title: Annotated[Line, StringConstraints(min_length=1, max_length=60)] = Field(examples=["Middle + 1 GPU"])
    cpu_milli: int = Field(ge=0, le=LARGEST, description="1000 is one core.")
    memory_mb: int = Field(ge=0, le=LARGEST)
    gpus: int = Field(default=0, ge=0, le=64)
    gpu_model: Annotated[Line, StringConstraints(max_length=60)] = Field(default="", description="Empty for any model.")
    resource: Line = Field(
        default=GPU,
        description="The extended resource of Kubernetes that `gpus` counts: those of another vendor, or slices of GPUs, which "
        "the quota of an appcode does not count. Other than nvidia.com/gpu, `gpuModel` only names it on the bill.",
        examples=["nvidia.com/mig-1g.10gb"],
    )
    node_labels: dict[str, str] = Field(
        default={}, description="Labels of the nodes that its tasks may go to.", examples=[{"pool": "a100"}]
    )
    tolerations: list[dict[str, str]] = Field(
        default=[],
        description="Taints that its tasks tolerate, as in Kubernetes.",
        examples=[[{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]],
    )
    extra: dict[str, int | str] = Field(
        default={}, description="Further extended resources of one task.", examples=[{"rdma/hca": 1}]
    )
    enabled: bool = Field(default=True, description="Whether it is offered; what runs keeps what it has.")


class NewFlavor(FlavorSpec):
    """With the name used in manifests, which cannot be changed later."""

    name: str


class ImageSpec(Strict):
    """An entry of the image catalogue."""

    title: Annotated[Line, StringConstraints(min_length=1, max_length=100)]
    description: Annotated[str, StringConstraints(max_length=10_000)] = ""
    container: Annotated[Line, StringConstraints(max_length=300)] = Field(
        default="", description="The container's reference, for Kubernetes.", examples=["registry.example.com/tf:2.21"]
    )
    environment: Annotated[Line, StringConstraints(max_length=500)] = Field(
        default="", description="The path of a virtual environment on the portal's own machine."
    )
    program: Annotated[Line, StringConstraints(max_length=500)] = Field(
        default="", description="A folder of that machine that tasks see at /elearn/program and start in."
    )
    frameworks: list[Annotated[str, AfterValidator(_known)]] = Field(
        default=[], description="Those that it has; others are refused. Empty: not said."
    )
    enabled: bool = Field(default=True, description="Whether it is offered; what runs goes on.")


class NewImage(ImageSpec):
    """With the name used in manifests, which cannot be changed later."""

    name: str


LARGE = {"title": "Large + 1 GPU", "cpuMilli": 4000, "memoryMb": 16384, "gpus": 1}
TORCH = {"title": "PyTorch nightly", "container": "registry.example.com/pytorch:nightly", "frameworks": ["pytorch"]}


def _example(value: dict[str, Any], name: str = "") -> OpenApiExample:
    named = {"name": name, **value} if name else value
    return OpenApiExample(str(value["title"]), request_only=True, value=named)


class Flavors(APIView):
    @operation("flavors_list", FlavorPage)
    def get(self, request: Request) -> Response:
        """The sizes that a task can have

        Administrators see those that are not offered, too."""
        return everything([flavor_document(row) for row in Flavor.objects.filter(**_offered(person(request)))])

    @operation("flavors_create", {201: FlavorDocument}, request=NewFlavor, examples=[_example(LARGE, "large-1-gpu")])
    def post(self, request: Request) -> Response:
        """Add a flavor

        For administrators."""
        user = administrator(request)
        row = _save(Flavor(), parse(NewFlavor, request.data), user)
        return created(request, row.name, flavor_document(row))


class OneFlavor(APIView):
    @operation("flavors_read", FlavorDocument)
    def get(self, request: Request, name: str) -> Document:
        """A size that a task can have"""
        return flavor_document(_named(Flavor, name, person(request)))

    @operation("flavors_change", FlavorDocument, request=FlavorSpec, examples=[_example(LARGE)])
    def put(self, request: Request, name: str) -> Document:
        """Change a flavor

        For administrators. What runs keeps what it has; what is started from now on gets this."""
        user = administrator(request)
        return flavor_document(_save(_named(Flavor, name, user), parse(FlavorSpec, request.data), user))


class Images(APIView):
    @operation("images_list", ImagePage)
    def get(self, request: Request) -> Response:
        """The images that a cluster can use

        Administrators see those that are not offered, too."""
        user = person(request)
        return everything([_image(row, user) for row in Image.objects.filter(**_offered(user))])

    @operation("images_create", {201: ImageDocument}, request=NewImage, examples=[_example(TORCH, "pytorch-nightly")])
    def post(self, request: Request) -> Response:
        """Add an image

        For administrators."""
        user = administrator(request)
        row = _save(Image(), parse(NewImage, request.data), user)
        return created(request, row.name, _image(row, user))


class OneImage(APIView):
    @operation("images_read", ImageDocument)
    def get(self, request: Request, name: str) -> Document:
        """An image that a cluster can use"""
        user = person(request)
        return _image(_named(Image, name, user), user)

    @operation("images_change", ImageDocument, request=ImageSpec, examples=[_example(TORCH)])
    def put(self, request: Request, name: str) -> Document:
        """Change an image

        For administrators. What runs goes on with the image that it has."""
        user = administrator(request)
        return _image(_save(_named(Image, name, user), parse(ImageSpec, request.data), user), user)


def _offered(user: User) -> dict[str, bool]:
    return {} if user.is_superuser else {"enabled": True}


def _named(model: type[Offer], name: str, user: User) -> Offer:
    row = model.objects.filter(name=name, **_offered(user)).first()
    if row is None:
        raise Http404(f"There is no {model.__name__.lower()} “{name}”.")
    return row


def _save(row: Offer, spec: Strict, user: User) -> Offer:
    for field, value in spec.model_dump().items():
        setattr(row, field, value)
    try:
        return save_offer(row, acting_user=user)
    except Invalid as invalid:
        # In the words of the body.
        raise Invalid([replace(each, path=tuple(map(to_camel, each.path))) for each in invalid.errors]) from invalid


def _image(row: Image, user: User) -> dict[str, Any]:
    return image_document(row, paths=user.is_superuser)
