"""The recipes on *Help* promise nothing that the portal does not read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from clusters.model_registry.detection import models_among
from clusters.recipes import FILES, OPTIONS, PRINTED, RECIPES
from clusters.results.values import options
from clusters.scalars.files import is_shown
from clusters.scalars.printed import scalars_of_log
from clusters.scalars.tables import is_table


def _read(text: str) -> dict[str, list[tuple[int, float]]]:
    return {curve.tag: [(p.step, p.value) for p in curve.points] for curve in scalars_of_log(text.encode()).curves}


def test_the_printed_lines_are_read_as_the_recipe_says() -> None:
    lines = PRINTED.code.splitlines()
    assert [_read(line) for line in lines[:5]] == [
        {"loss": [(75, 0.41)], "accuracy": [(75, 0.92)]},
        {"loss": [(75, 0.41)], "accuracy": [(75, 0.92)]},
        {"loss": [(3, 0.2)], "lr": [(3, 0.001)]},
        {"train loss": [(10, 3.2)], "val loss": [(10, 3.4)]},
        {"train-rmse": [(7, 0.38)]},
    ]
    assert _read("\n".join(lines[5:])) == {"accuracy": [(3, 0.91)], "loss": [(3, 0.31)]}
    assert len(lines) == 7


def test_files_in_the_recipes_have_names_that_are_read() -> None:
    code = "\n".join(recipe.code for recipe in RECIPES)
    assert is_table("/elearn/output/csv/version_0/metrics.csv")
    assert [path for path in re.findall(r"/elearn/output/\S+\.csv", code) if is_table(path)] == [
        "/elearn/output/history.csv"
    ]
    own = re.findall(r"/elearn/output/[\w{}:]+\.(?:png|csv)", FILES.code)
    assert len(own) == 2
    assert all(is_shown(path.replace("{epoch:04d}", "0003")) and not is_table(path) for path in own)
    for name in re.findall(r"\w+\.(?:csv|log)\b", next(each.text for each in RECIPES if each.title.startswith("CSV"))):
        assert is_table(name), name
    saved = re.findall(r'"(/elearn/output/model[^"]*)"', code)
    assert [models_among([path if "." in path else f"{path}/saved_model.pb"])[0].format for path in saved] == [
        "saved-model", "keras", "onnx", "sklearn",
    ]  # fmt: skip


def test_options_of_the_command_are_parameters() -> None:
    assert dict(options(OPTIONS.code)) == {"learning-rate": "0.01", "batch-size": "64", "augment": "true"}


def test_python_in_the_recipes_is_python() -> None:
    for recipe in RECIPES:
        if recipe not in (PRINTED, OPTIONS):
            compile(recipe.code, recipe.title, "exec")


@pytest.mark.django_db
@pytest.mark.parametrize("typed", ["tensorboard", "summarywriter", "mlflow.log_metric", "wandb", "checkpoint retry"])
def test_help_finds_recipes_by_their_words_and_their_code(client: Client, people: Any, typed: str) -> None:
    client.force_login(people.bob)
    page = client.get("/help", {"search": typed})
    assert 0 < len(page.context["recipes"]) < len(RECIPES)
    assert "Help does not say" not in page.content.decode()
    assert '<details class="fold" open>' in page.content.decode()
    assert client.get("/help").context["recipes"] == list(RECIPES)
