"""REST of the branding."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.views import APIView

from portal.api.operations import Document, operation
from portal.api.views import administrator, person
from portal.branding import actions, reading
from portal.branding.manifest import BrandingManifest, BrandingSpec
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "A banner",
    request_only=True,
    value={
        "kind": "branding",
        "spec": {
            "name": "Example AI", "colour": "#0a7c8a", "support": "mailto:gpu@example.com",
            "banner": {"text": "Rack 7 is replaced on Friday.", "level": "warning", "until": "2027-03-31T18:00:00Z"},
        },
    },
)  # fmt: skip


class BrandingView(APIView):
    @operation("branding_read", BrandingManifest)
    def get(self, request: Request) -> Document:
        """Name, logo, colour, support and banner of this portal"""
        person(request)
        return _document(reading.spec())

    @operation("branding_change", BrandingManifest, request=BrandingManifest, examples=[EXAMPLE])
    def put(self, request: Request) -> Document:
        """Change name, logo, colour, support and banner

        For administrators. Replaces all of it."""
        user = administrator(request)
        spec = parse(BrandingManifest, request.data).spec
        actions.set_branding(spec, acting_user=user)
        return _document(spec)


def _document(spec: BrandingSpec) -> Document:
    return BrandingManifest(spec=spec).model_dump(mode="json", by_alias=True)
