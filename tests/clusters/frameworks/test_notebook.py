"""A notebook as a run: which parts of it the spec keeps, and how parameters reach its cells."""

from __future__ import annotations

import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from pydantic import ValidationError

from clusters.frameworks.inside.notebook_run import with_parameters
from clusters.frameworks.notebook import packed
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.notebook import NotebookSpec, plain_notebook
from portal.manifests import mistakes


def notebook(*sources: str, tag: int = -1, **metadata: Any) -> str:
    cells = []
    for number, source in enumerate(sources):
        tags = {"tags": ["parameters"]} if number == tag else {}
        outputs = [{"output_type": "stream", "name": "stdout", "text": "long " * 1000}]
        cell = {"cell_type": "code", "id": f"c{number}", "source": source, "outputs": outputs, "execution_count": 3}
        cells.append({**cell, "metadata": tags})
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def spec(**changes: Any) -> ClusterSpec:
    body: dict[str, Any] = {
        "framework": "notebook",
        "image": "i",
        "output": "results",
        "roles": {"master": {"flavor": "small"}},
        "notebook": {"path": "work/a.ipynb", "source": notebook("x = 1"), "parameters": {"x": 2}},
    }
    return ClusterSpec.model_validate(body | changes)


def wrong(**changes: Any) -> list[tuple[str, ...]]:
    with pytest.raises(ValidationError) as refused:
        spec(**changes)
    return [each.path for each in mistakes(refused.value)]


def test_what_its_cells_wrote_is_no_part_of_it_and_all_else_is() -> None:
    plain = plain_notebook(notebook("x = 1", tag=0))
    assert "long" not in plain
    (cell,) = nbformat.reads(plain, as_version=4).cells
    assert (cell.source, cell.outputs, cell.execution_count) == ("x = 1", [], None)
    assert cell.metadata.tags == ["parameters"]
    assert plain_notebook(plain) == plain
    assert plain_notebook(notebook("'\0\ud800'")).isascii()  # which every table can store


def test_the_program_finds_the_whole_of_it_in_one_variable() -> None:
    of = spec()
    assert of.notebook is not None
    said = json.loads(zlib.decompress(base64.b64decode(packed(of))))
    assert said == {"path": "work/a.ipynb", "source": of.notebook.source, "parameters": {"x": 2}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"notebook": None}, ("notebook",)),
        ({"output": None}, ("output",)),
        ({"mode": "service"}, ("mode",)),
        ({"framework": "jax", "command": "true"}, ("notebook",)),
        ({"env": {"PORTAL_NOTEBOOK": "x"}}, ("env",)),
    ],
)
def test_what_cannot_be_run_is_refused_at_its_field(changes: dict[str, Any], path: tuple[str, ...]) -> None:
    assert wrong(**changes) == [path]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"path": "../a.ipynb"}, "path"),
        ({"path": "/etc/a.ipynb"}, "path"),
        ({"path": "a//b.ipynb"}, "path"),
        ({"path": "a.py"}, "path"),
        ({"path": "a\0.ipynb"}, "path"),
        ({"source": "{}"}, "source"),
        ({"source": "[" * 100_000}, "source"),
        ({"source": notebook("1", kernelspec={"name": "ir", "language": "R"})}, "source"),
        ({"source": '{"cells": [], "metadata": {}, "nbformat": 3}'}, "source"),
        ({"source": '{"cells": [1], "metadata": {}, "nbformat": 4}'}, "source"),
        ({"parameters": {"a b": 1}}, "parameters"),
        ({"parameters": {"import": 1}}, "parameters"),
        ({"parameters": {"x": float("nan")}}, "parameters"),
        ({"parameters": {"x": "a\0"}}, "parameters"),
        ({"parameters": {"x": ["\ud800"]}}, "parameters"),
    ],
)
def test_what_is_no_notebook_of_python_below_the_home_is_refused(changes: dict[str, Any], field: str) -> None:
    body = {"path": "a.ipynb", "source": notebook("1"), "parameters": {}}
    with pytest.raises(ValidationError) as refused:
        NotebookSpec.model_validate(body | changes)
    assert {error["loc"][0] for error in refused.value.errors()} == {field}


def test_one_that_no_program_could_be_given_is_refused() -> None:
    import random

    noise = "".join(random.Random(1).choices("0123456789abcdef", k=200_000))
    assert wrong(notebook={"path": "a.ipynb", "source": notebook(noise)}) == [("notebook", "source")]


@pytest.mark.parametrize(("tag", "expected"), [(-1, ["P", "a = 1", "print(a)"]), (0, ["a = 1", "P", "print(a)"])])
def test_parameters_stand_behind_the_cell_for_them_or_first(tag: int, expected: list[str]) -> None:
    read: Any = nbformat.reads(plain_notebook(notebook("a = 1", "print(a)", tag=tag)), as_version=4)  # type: ignore[no-untyped-call]
    with_parameters(read, {"a": "it's", "b": [None, True, {"c": 1.5}]})
    sources = ["P" if "injected-parameters" in cell.metadata.get("tags", []) else cell.source for cell in read.cells]
    assert sources == expected
    (given,) = (cell for cell in read.cells if "injected-parameters" in cell.metadata.get("tags", []))
    found: dict[str, Any] = {}
    exec(given.source, found)
    assert (found["a"], found["b"]) == ("it's", [None, True, {"c": 1.5}])
    assert SimpleNamespace(**found).a == "it's"
