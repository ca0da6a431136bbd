"""Finds models among files by file names alone. Pure.

A model is a folder: a SavedModel, with all folders inside it, by its structure, other formats by a single file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusters.model_registry.manifest import Format

_BY_ENDING: dict[str, Format] = {".keras": "keras", ".onnx": "onnx", ".skops": "sklearn"}
_SHOWN = 5


@dataclass(frozen=True)
class Found:
    """A model in `folder` ("" for the top). Its `main` file has its inputs and outputs. Paths are as in the listing."""

    folder: str
    format: Format
    main: str


def models_among(paths: Iterable[str]) -> list[Found]:
    """Models ordered by folder. If a folder has several files of one format, none of them counts."""
    by_folder: dict[tuple[str, Format], list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        known = "saved-model" if name == "saved_model.pb" else _BY_ENDING.get(f".{name.rpartition('.')[2]}")
        if known:
            by_folder.setdefault((folder, known), []).append(path)
    saved = [folder for folder, known in by_folder if known == "saved-model"]
    return sorted(
        (
            Found(folder, known, files[0])
            for (folder, known), files in by_folder.items()
            if len(files) == 1 and not any(_is_below(folder, above) for above in saved if above != folder)
        ),
        key=lambda each: (each.folder, each.format),
    )


def chosen(found: Sequence[Found]) -> Found:
    """The model that is meant if none was named. Raises ValueError, with a sentence, for none and for several."""
    if not found:
        raise ValueError(
            "No model is found there: a SavedModel, or a single .keras, .onnx or .skops file in a folder. "
            "Name the folder and its format."
        )
    if len(found) > 1:
        names = ", ".join(each.folder or "the top" for each in found[:_SHOWN])
        raise ValueError(f"Several models lie there: {names}{' and others' if len(found) > _SHOWN else ''}. Name one.")
    return found[0]


def _is_below(folder: str, above: str) -> bool:
    return not above or folder.startswith(f"{above}/")
