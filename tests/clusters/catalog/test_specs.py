"""Validation of manifests without a database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clusters.manifest.cluster import ClusterManifest
from clusters.manifest.env import format_env, parse_env
from portal.manifests import mistakes


def manifest(name="demo", **spec):
    roles = {"master": {"flavor": "small"}}
    return {
        "kind": "cluster",
        "metadata": {"name": name, "appcode": "ops-demo"},
        "spec": {"image": "tensorflow", "command": "python x.py", "roles": roles, **spec},
    }


def refused(body):
    with pytest.raises(ValidationError) as caught:
        ClusterManifest.model_validate(body)
    return {each.path: each.message for each in mistakes(caught.value)}


def roles(**counts):
    return {"roles": {"master": {"flavor": "small"}} | {r: {"flavor": "small", "count": n} for r, n in counts.items()}}


def test_the_smallest_manifest():
    read = ClusterManifest.model_validate(manifest())
    assert read.spec.active_roles.keys() == {"master"}
    assert read.spec.output_path == "{name}/{run}"


def test_a_status_that_comes_back_is_ignored():
    assert ClusterManifest.model_validate({**manifest(), "status": {"phase": "Running"}}).metadata.name == "demo"


@pytest.mark.parametrize("name", ["Demo", "1demo", "demo-", "-demo", "de_mo", "", "a" * 41, "dé", "demo\n", "a.b"])
def test_a_name_is_a_dns_label(name):
    assert ("metadata", "name") in refused(manifest(name=name))


@pytest.mark.parametrize("count", [-1, 1001, 10_000, "many", 1.5])
def test_a_count_out_of_range_is_refused_at_its_role(count):
    assert ("spec", "roles", "worker", "count") in refused(manifest(**roles(worker=count)))


def test_rules_over_several_fields_name_the_field_to_mend():
    assert ("spec", "roles", "master", "count") in refused(manifest(roles={"ps": {"flavor": "small"}}))
    assert ("spec", "roles", "ps", "count") in refused(manifest(framework="pytorch", **roles(ps=1)))
    assert ("spec", "completion") in refused(manifest(completion="workers"))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"command": " \n"}, ("spec", "command")),
        ({"code": {"files": {}}}, ("spec", "code", "files")),
        ({"code": {}}, ("spec", "code", "git")),
        ({"code": {"git": "https://x.example/y", "files": {"a": ""}}}, ("spec", "code", "git")),
        ({"code": {"files": {"a": ""}, "ref": "main"}}, ("spec", "code", "ref")),
        ({"code": {"git": "http://git.example/x.git"}}, ("spec", "code", "git")),
        ({"code": {"git": "file:///etc"}}, ("spec", "code", "git")),
        ({"code": {"git": "git@git.example:x/y.git"}}, ("spec", "code", "git")),
        ({"code": {"git": "https://me:secret@git.example/x.git"}}, ("spec", "code", "git")),
        ({"code": {"git": "https://git.example/"}}, ("spec", "code", "git")),
        ({"code": {"git": "https://git.example/x?y"}}, ("spec", "code", "git")),
        ({"code": {"git": "https://git.example/x", "ref": "--upload-pack=x"}}, ("spec", "code", "ref")),
        ({"code": {"git": "https://git.example/x", "ref": "a..b"}}, ("spec", "code", "ref")),
        ({"code": {"git": "https://git.example/x", "path": "../x"}}, ("spec", "code", "path")),
        ({"code": {"files": {"../x.py": ""}}}, ("spec", "code", "files", "../x.py")),
        ({"code": {"files": {"/etc/x": ""}}}, ("spec", "code", "files", "/etc/x")),
        ({"code": {"files": {"a/..b": ""}}}, ("spec", "code", "files", "a/..b")),
        ({"code": {"files": {"a//b": ""}}}, ("spec", "code", "files", "a//b")),
        ({"code": {"files": {"a\n": ""}}}, ("spec", "code", "files", "a\n")),
        ({"code": {"files": {"a": "", "a/b": ""}}}, ("spec", "code", "files", "a/b")),
        ({"code": {"files": {"a": "\0"}}}, ("spec", "code", "files", "a")),
        ({"code": {"files": {"a": "\ud800"}}}, ("spec", "code", "files", "a")),
        ({"code": {"files": {"a": "x" * 512 * 1024, "b": "x"}}}, ("spec", "code", "files")),
        ({"code": {"files": {f"{n}": "" for n in range(201)}}}, ("spec", "code", "files")),
        ({"command": "a\0b"}, ("spec", "command")),
        ({"command": "x" * 70_000}, ("spec", "command")),
        ({"env": {"A B": "1"}}, ("spec", "env")),
        ({"env": {"TF_CONFIG": "{}"}}, ("spec", "env")),
        ({"env": {"PET_NNODES": "2"}, "framework": "pytorch"}, ("spec", "env")),
        ({"env": {"JAX_PROCESS_ID": "0"}, "framework": "jax"}, ("spec", "env")),
        ({"env": {"TASK_RANK": "0"}}, ("spec", "env")),
        ({"env": {"A": 1}}, ("spec", "env", "A")),
        ({"requirements": ["pandas", "a b"]}, ("spec", "requirements")),
        ({"requirements": ["a\nb"]}, ("spec", "requirements", "0")),
        ({"requirements": ["--index-url https://x.example/simple"]}, ("spec", "requirements")),
        ({"requirements": ["-e ."]}, ("spec", "requirements")),
        ({"requirements": ["-r /etc/passwd"]}, ("spec", "requirements")),
        ({"requirements": ["-r r.txt"], "code": {"git": "https://git.example/x"}}, ("spec", "requirements")),
        ({"requirements": ["-r r.txt"], "code": {"files": {"r.txt": "-r other.txt"}}}, ("spec", "requirements")),
        ({"requirements": ["x @ https://x.example/x.whl"]}, ("spec", "requirements")),
        ({"requirements": ["git+https://x.example/x"]}, ("spec", "requirements")),
        (
            {"requirements": ["-r r"], "code": {"files": {"r": "\n".join(f"a{n}" for n in range(201))}}},
            ("spec", "requirements"),
        ),
        ({"requirements": ["x" * 3900 + f"{n}" for n in range(17)]}, ("spec", "requirements")),
        ({"requirements": ["pandas"], "environment": "torch"}, ("spec", "requirements")),
        ({"keras": 4}, ("spec", "keras")),
        ({"keras": 2, "framework": "pytorch"}, ("spec", "keras")),
        ({"keras": 2, "env": {"TF_USE_LEGACY_KERAS": "1"}}, ("spec", "keras")),
        ({"outputPath": "../other"}, ("spec", "outputPath")),
        ({"outputPath": "/root"}, ("spec", "outputPath")),
        ({"outputPath": "{user}"}, ("spec", "outputPath")),
        ({"retries": 11}, ("spec", "retries")),
        ({"terminationGracePeriod": 0}, ("spec", "terminationGracePeriod")),
        ({"terminationGracePeriod": 601}, ("spec", "terminationGracePeriod")),
        ({"timeLimit": 5}, ("spec", "timeLimit")),
        ({"scheduleAfter": "2026-01-01T00:00:00"}, ("spec", "scheduleAfter")),
        ({"framework": "caffe"}, ("spec", "framework")),
        ({"surprise": 1}, ("spec", "surprise")),
    ],
)
def test_each_wrong_value_is_named_by_its_path(change, path):
    assert path in refused(manifest(**change))


def test_requirements_are_read_as_pip_reads_them_with_the_files_that_they_name():
    """Covers comments, hashes over several lines and Windows line ends, as pip-compile and people write them."""
    digest = "a" * 64
    files = {
        "lib/r.txt": f"\ufeff# made by pip-compile\r\nsix==1.17.0 \\\r\n    --hash=sha256:{digest}\r\n\r\ncowsay  # fun\n"
    }
    said = ["pandas>=2.2; python_version < '4'", "", "-r ./lib/r.txt", "cowsay"]
    spec = ClusterManifest.model_validate(manifest(requirements=said, code={"files": files})).spec
    assert spec.required == ("cowsay", "pandas>=2.2; python_version < '4'", f"six==1.17.0 --hash=sha256:{digest}")


def test_env_as_the_form_takes_it():
    assert parse_env("PYTHONPATH=/demo | DATA_DIR=/elearn/output") == {
        "PYTHONPATH": "/demo",
        "DATA_DIR": "/elearn/output",
    }
    assert parse_env("A=b=c|B=") == {"A": "b=c", "B": ""}
    assert parse_env(" | ") == {}
    assert parse_env("A=1\r\nB=2\n\nC=3 | D=4") == {"A": "1", "B": "2", "C": "3", "D": "4"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("A", "no '='"), ("A=1|A=2", "twice"), ("1A=2", "not a variable name"), ("TASK_RANK=x", "set by")],
)
def test_env_that_cannot_be_read_says_why(text, says):
    with pytest.raises(ValueError, match=says):
        parse_env(text)


values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\\\n\r")).map(str.strip)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(lambda n: n != "TF_CONFIG"), values, max_size=5
    )
)
def test_env_survives_the_form(env):
    assert parse_env(format_env(env)) == env


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=20,
    )
)
def test_whatever_is_sent_is_a_manifest_or_a_list_of_errors_with_paths(body):
    # A random value is never a whole manifest; every error must name a path.
    with pytest.raises(ValidationError) as caught:
        ClusterManifest.model_validate(body)
    assert mistakes(caught.value)
