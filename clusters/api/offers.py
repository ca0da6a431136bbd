"""REST: flavors and images, which everybody who makes clusters reads and administrators write. None is ever deleted, because runs
and bills name it: `enabled: false` takes it off the offer."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import Http404
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import AfterValidator, Field, StringConstraints
from pydantic.alias_generators import to_camel
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.api.documents import FlavorDocument, FlavorPage, ImageDocument, ImagePage, flavor_document, image_document
from clusters.frameworks import INSTALLED
from clusters.models import Flavor, Image
from clusters.spec.offers import Offer, save_offer
from portal.access import require_administrator
from portal.api.pagination import everything
from portal.api.views import person
from portal.errors import FieldError, Invalid
from portal.manifests import Strict, parse
from portal.models import User
from portal.specs import Line

# Of a column of the database.
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
    enabled: bool = Field(default=True, description="Whether it is offered; what runs keeps what it has.")


class NewFlavor(FlavorSpec):
    """With the name that manifests say, which cannot be changed later."""

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
    """With the name that manifests say, which cannot be changed later."""

    name: str


LARGE = {"title": "Large + 1 GPU", "cpuMilli": 4000, "memoryMb": 16384, "gpus": 1}
TORCH = {"title": "PyTorch nightly", "container": "registry.example.com/pytorch:nightly", "frameworks": ["pytorch"]}


def _example(value: dict[str, Any], name: str = "") -> OpenApiExample:
    named = {"name": name, **value} if name else value
    return OpenApiExample(str(value["title"]), request_only=True, value=named)


class Flavors(APIView):
    @extend_schema(
        operation_id="flavors_list",
        summary="The sizes that a task can have",
        description="Administrators see those that are not offered, too.",
        responses=FlavorPage,
    )
    def get(self, request: Request) -> Response:
        return everything([flavor_document(row) for row in Flavor.objects.filter(**_offered(person(request)))])

    @extend_schema(
        operation_id="flavors_create",
        summary="Add a flavor",
        description="For administrators.",
        request=NewFlavor,
        responses={201: FlavorDocument},
        examples=[_example(LARGE, "large-1-gpu")],
    )
    def post(self, request: Request) -> Response:
        user = _administrator(request)
        return _created(request, flavor_document(_save(Flavor(), parse(NewFlavor, request.data), user)))


class OneFlavor(APIView):
    @extend_schema(operation_id="flavors_read", summary="A size that a task can have", responses=FlavorDocument)
    def get(self, request: Request, name: str) -> Response:
        return Response(flavor_document(_named(Flavor, name, person(request))))

    @extend_schema(
        operation_id="flavors_change",
        summary="Change a flavor",
        description="For administrators. What runs keeps what it has; what is started from now on gets this.",
        request=FlavorSpec,
        responses=FlavorDocument,
        examples=[_example(LARGE)],
    )
    def put(self, request: Request, name: str) -> Response:
        user = _administrator(request)
        return Response(flavor_document(_save(_named(Flavor, name, user), parse(FlavorSpec, request.data), user)))


class Images(APIView):
    @extend_schema(
        operation_id="images_list",
        summary="The images that a cluster can use",
        description="Administrators see those that are not offered, too.",
        responses=ImagePage,
    )
    def get(self, request: Request) -> Response:
        user = person(request)
        return everything([_image(row, user) for row in Image.objects.filter(**_offered(user))])

    @extend_schema(
        operation_id="images_create",
        summary="Add an image",
        description="For administrators.",
        request=NewImage,
        responses={201: ImageDocument},
        examples=[_example(TORCH, "pytorch-nightly")],
    )
    def post(self, request: Request) -> Response:
        user = _administrator(request)
        return _created(request, _image(_save(Image(), parse(NewImage, request.data), user), user))


class OneImage(APIView):
    @extend_schema(operation_id="images_read", summary="An image that a cluster can use", responses=ImageDocument)
    def get(self, request: Request, name: str) -> Response:
        user = person(request)
        return Response(_image(_named(Image, name, user), user))

    @extend_schema(
        operation_id="images_change",
        summary="Change an image",
        description="For administrators. What runs goes on with the image that it has.",
        request=ImageSpec,
        responses=ImageDocument,
        examples=[_example(TORCH)],
    )
    def put(self, request: Request, name: str) -> Response:
        user = _administrator(request)
        return Response(_image(_save(_named(Image, name, user), parse(ImageSpec, request.data), user), user))


def _administrator(request: Request) -> User:
    user = person(request)
    require_administrator(user)
    return user


def _offered(user: User) -> dict[str, bool]:
    return {} if user.is_superuser else {"enabled": True}


def _named(model: type[Offer], name: str, user: User) -> Offer:
    row = model.objects.filter(name=name, **_offered(user)).first()
    if row is None:
        raise Http404(f"There is no {model.__name__.lower()} “{name}”.")
    return row


def _save(row: Offer, spec: Strict, user: User) -> Offer:
    """Raises Invalid at the fields of the body."""
    for field, value in spec.model_dump().items():
        setattr(row, field, value)
    try:
        return save_offer(row, acting_user=user)
    except Invalid as invalid:
        errors = [FieldError(tuple(to_camel(part) for part in each.path), each.message) for each in invalid.errors]
        raise Invalid(errors) from invalid


def _image(row: Image, user: User) -> dict[str, Any]:
    return image_document(row, paths=user.is_superuser)


def _created(request: Request, document: dict[str, Any]) -> Response:
    address = request.build_absolute_uri(f"{request.path}/{document['name']}")
    return Response(document, status=status.HTTP_201_CREATED, headers={"Location": address})
