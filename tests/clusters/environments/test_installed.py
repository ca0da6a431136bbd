"""The package list that a task sends is validated, because user code runs in the task."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clusters.environments.installed import EnvironmentManifest, Found, digest_of, lock_of
from portal.errors import Invalid
from portal.manifests import parse

HASH = "--hash=sha256:" + "0" * 64
OTHER = "--hash=sha256:" + "f" * 64


def found(lock: str, **versions: str) -> Found:
    return Found(
        python="3.11.7",
        platform="Linux-x86_64",
        packages={name: {"version": version} for name, version in versions.items()},
        lock=lock,
    )


names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


@given(
    st.dictionaries(names, st.sampled_from(["1", "2.0.1", "1.0+cpu", "1!2.0rc1"]), min_size=1, max_size=6), st.randoms()
)
def test_however_a_lock_is_written_it_is_kept_in_one_form(packages: dict[str, str], chance: Any) -> None:
    lines = [f"{name}=={version} \\\n    {HASH} \\\n    {OTHER}" for name, version in packages.items()]
    again = [f"{name}=={version}   {OTHER} {HASH}" for name, version in packages.items()]
    chance.shuffle(again)
    kept = lock_of(found("# by uv\n" + "\n".join(lines) + "\n", **packages))
    assert lock_of(found("\n".join(again), **packages)) == kept
    assert lock_of(found(kept, **packages)) == kept
    assert {line.split("==")[0] for line in kept.splitlines()} == set(packages)


@pytest.mark.parametrize(
    "line",
    [
        f"--index-url https://name:password@index.example/simple\na==1 {HASH}",
        "--extra-index-url=http://elsewhere.example/\n",
        f"a @ https://elsewhere.example/a.whl {HASH}",
        "-e git+https://elsewhere.example/a#egg=a",
        "-r /etc/passwd",
        "a==1",
        f"a>=1 {HASH}",
        f"a==1 ; python_version < '4' {HASH}",
        f"a==1 --config-settings=x=y {HASH}",
        f"a[extra]==1 {HASH}",
    ],
)
def test_a_lock_with_anything_but_versions_and_hashes_is_refused(line: str) -> None:
    with pytest.raises(Invalid):
        lock_of(found(line, a="1"))


def test_a_lock_of_other_packages_than_were_found_is_refused() -> None:
    with pytest.raises(Invalid, match="changed meanwhile"):
        lock_of(found(f"a==1 {HASH}\nb==1 {HASH}\n", a="1"))


def test_each_part_of_an_environment_changes_its_digest() -> None:
    one = found(f"a==1 {HASH}\n", a="1")
    digests = {
        digest_of("x", one, one.lock, ""),
        digest_of("y", one, one.lock, ""),
        digest_of("x", one.model_copy(update={"python": "3.12.0"}), one.lock, ""),
        digest_of("x", one.model_copy(update={"platform": "Linux-aarch64"}), one.lock, ""),
        digest_of("x", one, "", ""),
        digest_of("x", one, one.lock, "true"),
    }
    assert len(digests) == 6


@pytest.mark.parametrize(
    "said",
    [
        {"packages": {"../x": {"version": "1"}}},
        {"packages": {"a": {"version": "1\n--index-url x"}}},
        {"packages": {f"a{n}": {"version": "1"} for n in range(501)}},
        {"python": "3.11; rm -rf /"},
    ],
)
def test_what_is_no_package_is_not_believed(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Found.model_validate({"python": "3.11.7", "platform": "Linux-x86_64", "packages": {}, **said})


@pytest.mark.parametrize(
    ("given_", "field"),
    [({"metadata": {"name": "No", "appcode": "ops"}}, "name"), ({"spec": {"script": "x" * 20_000}}, "script")],
)
def test_a_wrong_manifest_says_at_which_field(given_: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(EnvironmentManifest, {"metadata": {"name": "fine", "appcode": "ops"}, **given_})
    assert refused.value.errors[0].path[-1] == field
