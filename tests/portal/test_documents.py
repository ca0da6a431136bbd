"""What the documents name exists: files, headings, commands and settings. These tests need no server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
APPS = ("portal", "clusters", "datastores", "billing")
# Files that the reader writes.
READERS = {"docker/portal.env", "train.py"}
# Commands of Django and of libraries, and those that manage.py handles itself.
COMMANDS = {"backup", "createsuperuser", "makemigrations", "restore", "spectacular", "up", "version"}
HANDLED = re.compile(r'sys\.argv\[1:2\] == \["(\w+)"\]')
SETTING = re.compile(r"(?:PORTAL|LOCAL_CLOUD|OIDC)_[A-Z0-9_]*[A-Z0-9]")
NAME = re.compile(r"`([\w…*./-]+(?:/|\.(?:css|html|js|md|py|sql|toml|yaml)))`")


@cache
def files() -> frozenset[str]:
    """Also those that are not added yet."""
    listing = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return frozenset(name for name in listed.splitlines() if (ROOT / name).is_file())


@cache
def paths() -> frozenset[str]:
    """Files and folders."""
    return files() | {str(folder) for name in files() for folder in Path(name).parents}


@cache
def endings() -> dict[str, list[str]]:
    """What a path may be shortened to: `runs/models.py` and `models.py` for clusters/runs/models.py."""
    found: dict[str, list[str]] = {}
    for path in paths():
        parts = path.split("/")
        for start in range(len(parts)):
            found.setdefault("/".join(parts[start:]), []).append(path)
    return found


PAGES = sorted(name for name in files() if name in ("README.md", "CHANGELOG.md") or name.endswith("/README.md"))
PAGES += sorted(name for name in files() if re.fullmatch(r"docs/(?!README)[\w-]+\.md", name))


def lines(*pages: str) -> Iterator[tuple[str, int, str]]:
    """Page, number and text of each line, of all pages by default."""
    for page in pages or PAGES:
        for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
            yield page, number, line


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        found.append(f"{name}-{again}" if (again := found.count(name)) else name)
    return frozenset(found)


def test_links_lead_to_files_and_headings() -> None:
    dead = []
    for page, number, line in lines():
        for link in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"https?:|mailto:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            if not target.exists() or (anchor and anchor not in anchors(target.resolve())):
                dead.append(f"{page}:{number}: {link}")
    assert not dead


def exists(name: str, page: str) -> bool:
    """A name is relative to the page or to the root, or the end of a path. The README of a room describes its own folder, so a
    bare name there is below it or at the root."""
    folder = Path(page).parent
    if name.startswith("../"):
        return (ROOT / folder / name).exists()
    ending = name.rstrip("/").removeprefix("…/")
    if "*" in ending:
        return any(fnmatch(path, f"*{ending}") for path in paths())
    of_room = page.endswith("/README.md") and _top(page) in APPS and "/" not in name
    return any(path.startswith(f"{folder}/") or path == name or not of_room for path in endings().get(ending, ()))


def test_files_that_pages_name_exist() -> None:
    missing = []
    for page, number, line in lines():
        for name in NAME.findall(line):
            ours = name.endswith((".py", ".html")) or name.split("/")[0] in {"..", "…", *map(_top, paths())}
            if ours and name not in READERS and not exists(name, page):
                missing.append(f"{page}:{number}: {name}")
        for module in re.findall(r"`((?:portal|clusters|datastores|billing|tests|bench)(?:\.\w+)+)`", line):
            # The last part may be a name in the module.
            ends = (module, module.rpartition(".")[0])
            if not any({end.replace(".", "/"), end.replace(".", "/") + ".py"} & paths() for end in ends):
                missing.append(f"{page}:{number}: {module}")
    assert not missing


def _top(path: str) -> str:
    return path.split("/")[0]


def test_commands_that_pages_name_exist() -> None:
    ours = {Path(name).stem for name in files() if "/management/commands/" in name}
    ours |= COMMANDS | set(HANDLED.findall((ROOT / "manage.py").read_text()))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for page, number, line in lines():
        called = {name for name in re.findall(r"manage\.py ([a-z][\w-]*)", line) if name not in ours}
        called |= {name for name in re.findall(r"(?:`|^ *)make ([a-z][\w-]*)", line) if name not in targets}
        wrong += [f"{page}:{number}: {name}" for name in called]
    assert not wrong


def _settings_of(*pages: str) -> set[str]:
    """All settings that pages name. `PORTAL_LOGS_S3_URL`, `…_BUCKET` names PORTAL_LOGS_S3_BUCKET, too."""
    named: set[str] = set()
    for _, _, line in lines(*pages):
        whole = SETTING.findall(line)
        named.update(whole)
        for end in re.findall(r"`…(_[A-Z_]+)`", line):
            named.add(whole[0].rpartition("_")[0] + end)
    return named


def test_settings_that_pages_name_are_read() -> None:
    code = "\n".join(
        (ROOT / name).read_text()
        for name in files()
        if _top(name) in (*APPS, "docker", "bench", "examples", "tests") and not name.endswith(".md")
    )
    known = set(SETTING.findall(code))
    assert _settings_of() - known == set()


def test_every_setting_has_its_row() -> None:
    """Of `clusters/` only the settings of the node agent count: all else there is for tasks."""
    read: set[str] = set()
    for name in files():
        if not (name.endswith(".py") and _top(name) in APPS) or "/migrations/" in name:
            continue
        for setting in re.findall(rf'"({SETTING.pattern})"', (ROOT / name).read_text()):
            if _top(name) != "clusters" or setting.startswith("LOCAL_CLOUD_"):
                read.add(setting.removesuffix("_FILE") if setting.endswith("KEY_FILE") else setting)
    # Some modules handle all settings that begin alike.
    read = {name for name in read if not any(other.startswith(f"{name}_") for other in read)}
    assert read - _settings_of("docs/settings.md") == set()
