"""How the definition of a serving runtime starts a replica."""

import pytest
from django.core.exceptions import ValidationError

from clusters.catalog.models import ServingRuntime
from clusters.frameworks.runtimes import SHIPPED, Template, server


def test_words_are_divided_once_and_only_three_places_are_filled():
    said = server(
        "own",
        Template(
            """run --name='{model} {version}' {port} {other} "$(reboot); {model}" {{model}}""",
            "/{model}",
            "/m/{version}",
            9000,
        ),
        "digits",
        3,
    )
    words = ["run", "--name=digits 3", "9000", "{other}", "$(reboot); digits", "{digits}"]
    assert (said["argv"], said["health"], said["folder"]) == (words, "/digits", "/m/3")


@pytest.mark.parametrize("facts", SHIPPED, ids=lambda facts: facts["name"])
def test_what_every_portal_has_is_what_an_administrator_could_have_written(facts):
    ServingRuntime(**facts).clean()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "portal"}, "command"), ({"command": ""}, "command"), ({"command": "run 'so"}, "command"),
        ({"command": " "}, "command"), ({"folder": "/models/{model}"}, "folder"), ({"folder": "/../x", "image": "x"}, "folder"),
        ({"port": 80}, "port"), ({"health": "ready"}, "health"), ({"warm_up_seconds": 4000}, "warm_up_seconds"),
        ({"env": {"TASK_INDEX": "1"}}, "env"),
    ],
)  # fmt: skip
def test_what_could_not_be_started_is_said_at_its_column(changes, field):
    facts = {
        "name": "own",
        "title": "Own",
        "formats": ["onnx"],
        "protocols": ["openai-v1"],
        "command": "run",
        **changes,
    }
    with pytest.raises(ValidationError) as found:
        ServingRuntime(**facts).clean()
    assert set(found.value.message_dict) == {field}
