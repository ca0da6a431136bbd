"""References in ENV: a shell expands them as promised, whatever else the values contain."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters.clouds.drivers.base import SHELL
from clusters.frameworks import variables
from clusters.manifest.env import check_env

NAMES = ["A", "B", "C", "HOME_OF_IMAGE", "NOWHERE"]
IMAGE = {"A": 'image\'s "A"', "HOME_OF_IMAGE": "/home $x `y`\n", "PATH": "/usr/local/bin:/usr/bin:/bin"}
parts = st.one_of(
    st.sampled_from([form.format(name) for form in ("${}", "${{{}}}", "$({})") for name in NAMES]),
    st.sampled_from(["$$", "$", "$1", "${", "}", "\\", "'", '"', "`id`", "$(id -u)", "\n", " ", "!", "é"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
)
environments = st.dictionaries(st.sampled_from(["A", "B", "C"]), st.lists(parts, max_size=6).map("".join))


def promised(env: dict[str, str]) -> dict[str, str]:
    """The rule: a reference becomes another entry of the same ENV, else the image's value; otherwise it stays as written."""

    def value(name: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            other = match[1] or match[2] or match[3]
            if other is None:
                return "$"
            return value(other) if other in env and other != name else IMAGE.get(other, match[0])

        return re.sub(r"\$\$|\$(?:([A-Z_]+[A-Za-z0-9_]*)|\{([A-Z_]+)\}|\(([A-Z_]+)\))", replaced, env[name])

    return {name: value(name) for name in env}


@given(environments)
@settings(max_examples=60)
def test_a_program_finds_what_its_variables_mean(env: dict[str, str]) -> None:
    try:
        variables.check(env)
    except ValueError as error:
        assert "refer to each other" in str(error)  # noqa: PT017
        return
    found = {name: text for name, text in env.items() if not re.search(r"\$[({]?[a-z]", text) and "$_" not in text}
    argv = variables.started((sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"), found)
    said = subprocess.run(argv, env=IMAGE | variables.given(found), capture_output=True, check=True).stdout
    seen = json.loads(said)
    assert {name: seen[name] for name in found} == promised(found)
    assert variables.SCRIPT not in seen


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"PATH": "/demo"}, "Without /usr/bin and /bin no program is found; write PATH=/demo:$PATH."),
        ({"PATH": ""}, "Without /usr/bin and /bin no program is found; write PATH=/opt/tool/bin:$PATH."),
        ({"PATH": "/demo:$$PATH"}, "Without /usr/bin and /bin no program is found"),
        ({"A": "$B", "B": "x${A}"}, "These variables refer to each other: A → B → A."),
    ],
)
def test_what_could_not_be_started_is_refused(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_env(env)


@pytest.mark.parametrize("path", ["/demo:$PATH", "${PATH}:/demo", "/opt/bin:/usr/bin:/bin"])
def test_a_path_that_finds_programs_is_taken(path: str) -> None:
    check_env({"PATH": path, "ITSELF": "$ITSELF"})


def test_a_terminal_has_the_variables_of_the_program() -> None:
    assert SHELL[2].startswith(variables.PREAMBLE)
