"""Image, serving runtime, environment and plugins that a manifest names → rows that can be used at a place."""

from __future__ import annotations

from django.db.models import QuerySet

from clusters.catalog.locks import together
from clusters.catalog.models import Image, ServingRuntime
from clusters.clouds.placement import Place, title_of
from clusters.clouds.registry import why_no_environments
from clusters.environments.models import Environment, Plugin
from clusters.frameworks import FRAMEWORKS
from clusters.manifest.cluster import ClusterSpec
from portal.errors import FieldError
from portal.models import Appcode


def runtime_named(spec: ClusterSpec, place: Place, errors: list[FieldError]) -> ServingRuntime | None:
    """The model's serving runtime; None, without a query, for the portal's own server. Adds an error if it cannot be used
    there."""
    if spec.server is None:
        return None
    found = ServingRuntime.objects.filter(name=spec.server.runtime, enabled=True).first()
    sentence = ""
    if found is None:
        sentence = f"The catalogue offers no serving runtime “{spec.server.runtime}”."
    elif found.image and place.driver.software != "container":
        sentence = f"“{found.title}” is a container, and {title_of(place.cloud)} runs none; choose another runtime."
    if sentence:
        errors.append(FieldError(("spec", "server"), sentence))
    return found


def image_of(runtime: ServingRuntime | None) -> Image | None:
    """The container of a runtime, as an image."""
    if runtime is None or not runtime.image:
        return None
    return Image(name=runtime.name, title=runtime.title, container=runtime.image)


def images_named(spec: ClusterSpec) -> QuerySet[Image]:
    return Image.objects.filter(name=spec.image, enabled=True)


def checked(image: Image | None, spec: ClusterSpec, place: Place, errors: list[FieldError]) -> Image | None:
    """Returns `image`, adding an error if it is missing or cannot be used there."""
    if image is None:
        errors.append(FieldError(("spec", "image"), f"The catalogue has no image “{spec.image}”."))
    elif not image.has(place.driver.software):
        has = "container reference" if image.container else "local environment"
        sentence = f"“{image.title}” has only a {has} and cannot run on {title_of(place.cloud)}; choose another image."
        errors.append(FieldError(("spec", "image"), sentence))
    return image


def why_not_in(image: Image, framework: str) -> str:
    """Why the image lacks the software of this framework, as far as its administrators listed frameworks; or ""."""
    driver = FRAMEWORKS[framework]
    if not driver.is_installed or not image.frameworks or framework in image.frameworks:
        return ""
    has = ", ".join(FRAMEWORKS[name].title for name in image.frameworks if name in FRAMEWORKS)
    return f"“{image.title}” has no {driver.title} (it has: {has}); choose another image or framework."


def environment_named(
    spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]
) -> Environment | None:
    """The environment that `spec` names, by default its newest version. Adds an error if it cannot be used."""
    if spec.environment is None:
        return None
    name, _, version = spec.environment.partition(":")
    rows = Environment.objects.filter(appcode=appcode, name=name, deleted_at=None)
    found = (rows.filter(version=int(version)) if version else rows).order_by("-version").first()
    sentence = ""
    if found is None:
        sentence = f"{appcode.code} has no environment “{spec.environment}”."
    elif found.image != spec.image:
        sentence = f"“{found}” was saved over the image {found.image}; choose that image, or no environment."
    elif why := why_no_environments(place.cloud):
        sentence = (
            f"Saved environments cannot be used on {title_of(place.cloud)}: {why} An image that has the packages can."
        )
    if sentence:
        errors.append(FieldError(("spec", "environment"), sentence))
    return found


def judge_requirements(spec: ClusterSpec, place: Place, errors: list[FieldError]) -> None:
    """Adds an error if requirements cannot be installed there. One query, none without requirements."""
    if spec.requirements and (why := why_no_environments(place.cloud)):
        sentence = f"Nothing can be installed on {title_of(place.cloud)}: {why} An image that has the packages can."
        errors.append(FieldError(("spec", "requirements"), sentence))


def plugins_named(spec: ClusterSpec, place: Place, errors: list[FieldError]) -> tuple[Plugin, ...]:
    """The plugins that `spec` names, by default their newest versions. Adds an error if unusable. One query, none without any."""
    if not spec.plugins:
        return ()
    rows = list(Plugin.objects.filter(image__name=spec.image, deleted_at=None).order_by("name", "-version"))
    found = []
    sentence = why_no_environments(place.cloud)
    if sentence:
        sentence = f"Plugins cannot be used on {title_of(place.cloud)}: {sentence} An image that has them can."
    for asked in spec.plugins:
        row = next((row for row in rows if asked in (row.name, str(row))), None)
        if row is None:
            offered = ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
            sentence = sentence or f"With the image {spec.image} no plugin “{asked}” is offered; there are: {offered}."
        else:
            found.append(row)
    try:
        together({str(row): row.lock for row in found})
    except ValueError as error:
        sentence = sentence or str(error)
    if sentence:
        errors.append(FieldError(("spec", "plugins"), sentence))
    return tuple(found)
