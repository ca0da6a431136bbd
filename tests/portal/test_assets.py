"""Files of npm packages: the pinned ones are written, or nothing is."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
from typing import Any

import pytest

from portal import assets
from portal.assets import Package


def package(files: dict[str, bytes]) -> tuple[Package, bytes]:
    """Returns a package with these files, and its archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive = buffer.getvalue()
    sha512 = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    return Package("@some/thing", "1.2.3", sha512, {name: f"thing/{name}" for name in files}), archive


def test_files_come_without_the_address_of_a_source_map() -> None:
    thing, archive = package({"lib/thing.js": b"run();\n//# sourceMappingURL=thing.js.map", "LICENSE": b"free"})
    assert thing.path == "@some/thing/-/thing-1.2.3.tgz"
    assert assets.unpack(thing, archive) == {"thing/lib/thing.js": b"run();\n", "thing/LICENSE": b"free"}


def test_something_else_is_not_taken() -> None:
    thing, _ = package({"thing.js": b"run();"})
    _, other = package({"thing.js": b"steal();"})
    with pytest.raises(ValueError, match=re.escape("@some/thing/-/thing-1.2.3.tgz is something else")):
        assets.unpack(thing, other)


def test_a_registry_that_does_not_answer_leaves_everything_as_it_was(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(assets, "FOLDER", tmp_path / "static")
    with pytest.raises(OSError, match="refused"):
        assets.fetch("http://127.0.0.1:1/")
    assert not assets.has_xterm()
    assert list(tmp_path.iterdir()) == []
