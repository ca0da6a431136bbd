"""REST: the shares of each cloud."""

from __future__ import annotations

from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.runs.queries.shares import Line, Tree, trees
from portal.access import roles_of
from portal.api.documents import Answer, page_of
from portal.api.operations import operation
from portal.api.pagination import everything
from portal.api.views import person


class Part(Answer):
    """GPUs of an appcode, or of several together. `held` and `borrowed` are its share now, `due` is its fair share."""

    quota: int = Field(description="Guaranteed: what runs inside it is not taken by others.")
    borrow: int = Field(description="What it may hold beyond the quota while nobody else needs it.")
    weight: int
    held: int = Field(description="Inside the quota.")
    borrowed: int = Field(description="Beyond the quota; others may take them back.")
    spare: int = Field(description="Held by runs of the class spare, which count against nothing.")
    lent: int = Field(description="Of the quota, held by others at this moment.")
    waiting: int = Field(description="For which its runs wait.")
    due: int = Field(
        description="What it deserves of what it holds and waits for: its quota first, then by weight, less for who used much "
        "lately."
    )
    used: int = Field(description="GPU-seconds used lately; half of them fade in a week. Spare ones do not count.")


class AppcodePart(Part):
    appcode: str


class LineParts(Part):
    """A business line: the sum over its appcodes, and each of them."""

    line: str = Field(description="Its namespace.")
    title: str = Field(description="Empty where appcodes belong to no business line.")
    appcodes: list[AppcodePart]


class SharesDocument(Answer):
    """Shares of one cloud on whose nodes the portal places runs."""

    cloud: str
    title: str
    gpus: int
    quotas: int = Field(description="Of all appcodes together. If they are more than `gpus`, nothing is promised.")
    lines: list[LineParts] = Field(description="Business lines of your appcodes.")
    others: Part | None = Field(description="All other business lines together; null if there are none.")


SharesPage = page_of("SharesPage", SharesDocument)


class SharesView(APIView):
    @operation("shares_list", SharesPage)
    def get(self, request: Request) -> Response:
        """Which part of each cloud every business line and appcode has, and which it deserves

        By name within the business lines of your appcodes, as one sum for all others. Clouds that order runs themselves have no
        shares."""
        roles = roles_of(person(request))
        return everything([_document(each) for each in trees(None if roles is None else list(roles))])


def _document(tree: Tree) -> dict[str, object]:
    return SharesDocument.of(
        tree,
        lines=[_line(each) for each in tree.lines],
        others=Part.of(tree.others) if tree.others else None,
    ).json_value()


def _line(line: Line) -> LineParts:
    return LineParts.of(
        line.total,
        line=line.name,
        title=line.title,
        appcodes=[AppcodePart.of(part, appcode=code) for code, part in line.appcodes.items()],
    )
