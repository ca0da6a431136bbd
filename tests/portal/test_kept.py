"""Which fields of a manifest a change keeps is declared once, at the field; errors name fields as JSON does."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from portal.errors import Invalid
from portal.manifests import Manifest, Strict, public_path
from portal.manifests.kept import MAY_CHANGE, Kept, changeable, described, refuse_changes


class Shape(Strict):
    max_side: int = 0


class BoxMetadata(Strict):
    name: Annotated[str, Kept("A box keeps its name.")]
    note: str = ""


class BoxSpec(Strict):
    first_shape: Shape = Shape()
    shapes: dict[str, Shape] | None = None
    rows: Annotated[list[tuple[Shape, ...]], Kept("Rows stay as many.", part=len)] = Field(default_factory=list)
    most_boxes: Annotated[int, MAY_CHANGE] = 1
    lid: Annotated[bool, MAY_CHANGE] = True


class BoxManifest(Manifest):
    kind: Literal["box"] = "box"
    metadata: BoxMetadata
    spec: Annotated[BoxSpec, Kept("Make another box.")] = BoxSpec()


def box(name="a", note="", **spec):
    return BoxManifest(metadata=BoxMetadata(name=name, note=note), spec=BoxSpec(**spec))


ONE, OTHER = ((Shape(max_side=1),),), ((Shape(max_side=2),),)
REFUSED = [
    (box("b"), ("metadata", "name"), "A box keeps its name."),
    (box(rows=[*ONE], first_shape=Shape(max_side=1)), ("spec", "firstShape"), "Make another box. MostBoxes and lid may change."),
    (box(rows=[*ONE, *OTHER]), ("spec", "rows"), "Rows stay as many."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("now", "where", "why"), REFUSED, ids=lambda each: ".".join(each) if isinstance(each, tuple) else ""
)
def test_a_kept_field_is_refused_at_its_json_key(now, where, why):
    with pytest.raises(Invalid) as refused:
        refuse_changes(now, name="a", spec=box(rows=[*ONE]).spec)
    assert [(each.path, each.message) for each in refused.value.errors] == [(where, why)]


def test_the_others_may_change_and_a_reason_is_said_once():
    refuse_changes(box(note="new", rows=[*OTHER], most_boxes=2, lid=False), name="a", spec=box(rows=[*ONE]).spec)
    assert changeable(BoxSpec) == ["mostBoxes", "lid"]
    assert described(BoxManifest) == (
        "`metadata.name`: A box keeps its name. "
        "`spec.firstShape`, `spec.shapes`: Make another box. MostBoxes and lid may change. "
        "`spec.rows`: Rows stay as many."
    )


def test_a_present_value_that_is_not_given_is_an_error_of_ours():
    with pytest.raises(KeyError):
        refuse_changes(box(), spec=BoxSpec())


PATHS = [
    (("spec", "first_shape", "max_side"), ("spec", "firstShape", "maxSide")),
    (("spec", "firstShape", "maxSide"), ("spec", "firstShape", "maxSide")),
    # The name of a shape is no field, even if it looks like one.
    (("spec", "shapes", "max_side", "max_side"), ("spec", "shapes", "max_side", "maxSide")),
    (("spec", "rows", "0", "1", "max_side"), ("spec", "rows", "0", "1", "maxSide")),
    (("spec", "of_nobody", "max_side"), ("spec", "of_nobody", "max_side")),
]


@pytest.mark.parametrize(("path", "said"), PATHS)
def test_a_path_is_said_by_json_keys(path, said):
    assert public_path(BoxManifest, path) == said
    assert public_path(None, path) == path
