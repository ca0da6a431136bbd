"""The OpenAPI description: pydantic models as schemas, bearer authentication, and problem details for every operation."""

from __future__ import annotations

from typing import Any, ClassVar

import pydantic
from drf_spectacular.authentication import SessionScheme
from drf_spectacular.contrib.pydantic import PydanticExtension
from drf_spectacular.drainage import set_override, warn
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.plumbing import ResolvedComponent, build_bearer_security_scheme_object
from pydantic.json_schema import GenerateJsonSchema

REFERENCE = "#/components/schemas/"
# An operation gets the tag of the first of these words in its path, or "Me".
TAGS = {
    "webhooks": "Webhooks",
    "usage": "Usage",
    "invoices": "Invoices",
    "months": "Invoices",
    "prices": "Prices and credits",
    "discounts": "Prices and credits",
    "credits": "Prices and credits",
    "budgets": "Budgets",
    "dashboard": "Dashboards",
    "pipelines": "Sweeps, pipelines, schedules",
    "sweeps": "Sweeps, pipelines, schedules",
    "schedules": "Sweeps, pipelines, schedules",
    "benchmarks": "Benchmarks",
    "models": "Models and services",
    "services": "Models and services",
    "hooks": "Clusters",
    "queue": "Clusters",
    "environments": "Environments",
    "runs": "Runs, tasks and logs",
    "applications": "Applications",
    "clusters": "Clusters",
    "templates": "Clusters",
    "datastores": "Datastores",
    "appcodes": "Appcodes",
    "flavors": "Catalogue",
    "images": "Catalogue",
    "serving-runtimes": "Catalogue",
    "org-nodes": "Appcodes",
    "kubernetes": "Clouds",
    "placements": "Clouds",
    "version": "Version",
    "": "Me",
}


class FieldProblem(pydantic.BaseModel):
    """One invalid field: its path in the manifest, or the name of a query parameter."""

    path: str
    message: str
    see: str = pydantic.Field(
        default="", description="The page on which one asks for what is missing; left out where there is none."
    )


class Problem(pydantic.BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldProblem] = []
    id: str = pydantic.Field(default="", description="The number of an internal error, to tell an administrator.")


class ManifestSchema(PydanticExtension):  # type: ignore[no-untyped-call]
    """A pydantic model in requests (fields with defaults are optional) or in responses (all fields are present)."""

    priority = 1
    named: ClassVar[dict[str, type]] = {}

    def get_name(self, auto_schema: Any, direction: str) -> str:
        """The class's name. Two models with one name would silently be merged, so that is a warning (an error in tests)."""
        name: str = self.target.__name__
        set_override(self.target, "suppress_collision_warning", True)
        if self.named.setdefault(name, self.target) is not self.target:
            warn(f"Two different models are called {name}.")
        return name

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        suffix = "Request" if direction == "request" else ""
        schema, parts = schema_of(self.target, request=direction == "request", suffix=suffix)
        for name, part in parts.items():
            component = ResolvedComponent(name, ResolvedComponent.SCHEMA, part, name)  # type: ignore[no-untyped-call]
            auto_schema.registry.register_on_missing(component)
        return schema


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "portal.api.tokens.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        scheme: dict[str, Any] = build_bearer_security_scheme_object(header_name="Authorization", token_prefix="Bearer")  # noqa: S106
        return {**scheme, "description": "A token made on your profile page."}


class BrowserScheme(SessionScheme):  # type: ignore[no-untyped-call]
    target_class = "portal.api.sessions.BrowserAuthentication"


class Untitled(GenerateJsonSchema):
    """JSON schemas without titles. Code generators name classes by title, and the request and response schema of one
    model would share it."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _untitled(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _untitled(super().dataclass_schema(schema))


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}


def schema_of(
    model: type[pydantic.BaseModel], *, request: bool = False, suffix: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of `model`, and the schemas of its parts by component name."""
    schema = model.model_json_schema(
        ref_template=REFERENCE + "{model}" + suffix,
        mode="validation" if request else "serialization",
        schema_generator=Untitled,
    )
    return schema, {name + suffix: part for name, part in schema.pop("$defs", {}).items()}


def finish(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds what all operations share: a problem response and a tag."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"], parts = schema_of(Problem)
    schemas.update(parts)
    answer = {
        "description": "What is wrong, as problem details (RFC 9457).",
        "content": {"application/problem+json": {"schema": {"$ref": f"{REFERENCE}Problem"}}},
    }
    for path, operations in result["paths"].items():
        words = path.split("/")
        tag = next(title for word, title in TAGS.items() if word in words)
        for operation in operations.values():
            operation["responses"]["default"] = answer
            operation["tags"] = [tag]
    return result
