"""`make quick`: what a change most likely breaks, in a minute. It lints the changed files, then runs the tests of changed rooms,
the tests that name a changed module, and every pure test (no database, server or program). "Changed" is what differs from BASE,
which is origin/HEAD.

pytest-testmon would choose from a record of what each test ran. It needs a whole run first and does not see the programs that our
tests start. This choice can miss something, too; `make test` is what counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

ROOT = Path(__file__).resolve().parent.parent
APPS = ("portal", "billing", "datastores", "clusters")
SLOW = ("e2e", "kube", "trains", "node")
# A test with no other fixture needs nothing that has to be started. Those of the last line are there for every test of a folder.
PURE = {
    "cache", "capfd", "caplog", "capsys", "doctest_namespace", "monkeypatch", "real_portal", "recwarn", "request", "settings",
    "subtests", "tmp_path", "tmp_path_factory",
    "as_it_was", "patience", "soon",
}  # fmt: skip
# Those of pytest-django that are there for every test.
ALWAYS = ("_", "django_test_environment", "django_db_blocker", "django_db_modify")


def changed() -> list[Path]:
    """Relative to the root, without files that were removed."""
    base = os.environ.get("BASE", "origin/HEAD")
    since = _git("merge-base", "HEAD", base) or ["HEAD"]
    found = [
        *_git("diff", "--name-only", "--diff-filter=d", since[0]),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]
    return sorted({Path(name) for name in found})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def tests_of(paths: Iterable[Path]) -> set[Path]:
    """The changed test files, those of the rooms of changed files, and those that name a changed module."""
    tests, names = ROOT / "tests", []
    found: set[Path] = set()
    for path in paths:
        # templates/billing/cost.html belongs where billing/cost.py would.
        app, *rest = path.parts[path.parts[0] == "templates" :]
        if app == "tests" and path.name.startswith("test_"):
            found.add(ROOT / path)
        elif app in APPS and len(rest) > 1:
            found.update(tests.glob(f"{app}/{rest[0]}/**/test_*.py"), tests.glob(f"{app}/test_{rest[0]}*.py"))
        elif app in APPS:
            kind = "pages" if path.suffix == ".html" else path.stem
            found.update(tests.glob(f"{app}/**/test_{kind}*.py"))
        if app in APPS and path.suffix == ".py":
            names.append(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    for file in tests.rglob("test_*.py"):
        text = file.read_text()
        if any(name in text or _imports(name, text) for name in names):
            found.add(file)
    return {file.relative_to(ROOT) for file in found}


def _imports(name: str, text: str) -> bool:
    """`from clusters.runs import reconcile`."""
    package, _, module = name.rpartition(".")
    return any(
        line.strip().startswith(f"from {package} import ") and module in line.replace(",", " ").split()
        for line in text.splitlines()
    )


def is_pure(item: pytest.Item) -> bool:
    """Property tests and tests that start programs take most of the time, so they run only where the change is about them. A
    test that asks for its `request` may look at tests that are not there."""
    test = getattr(item, "obj", None)
    if item.get_closest_marker("django_db") or is_hypothesis_test(test) or "request" in signature(test).parameters:
        return False
    names = {name for name in getattr(item, "fixturenames", ()) if not name.startswith(ALWAYS)}
    params = set(getattr(getattr(item, "callspec", None), "params", ()))
    return names <= PURE | params and not hasattr(getattr(item, "module", None), "subprocess")


class Chosen:
    def __init__(self, files: set[Path]) -> None:
        self.files = files

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.path.relative_to(ROOT) in self.files or is_pure(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin (`-p tests.quick`), for the processes of pytest-xdist load it, too."""
    config.pluginmanager.register(Chosen(tests_of(changed())))


def main(arguments: Sequence[str]) -> int:
    paths = changed()
    python = [str(path) for path in paths if path.suffix == ".py"]
    templates = [str(path) for path in paths if path.parts[0] == "templates"]
    programs = Path(sys.executable).parent
    failed = False
    for program, *options, files in (
        ("ruff", "check", "--force-exclude", python),
        ("ruff", "format", "--check", "--force-exclude", python),
        ("djlint", "--lint", "--quiet", templates),
    ):
        if files:
            failed |= subprocess.run([programs / program, *options, *files], cwd=ROOT, check=False).returncode != 0
    argv = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.quick",
        "-m",
        f"not ({' or '.join(SLOW)})",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    ]
    failed |= subprocess.run([sys.executable, *argv, *arguments], cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
