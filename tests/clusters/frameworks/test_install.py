"""Several tasks build the same saved environment at once, as on Kubernetes: with the real uv and a private index behind the
cluster's package mirror."""

from __future__ import annotations

import bz2
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clusters.clouds.drivers.base import INDEX_UNREACHED
from clusters.frameworks.inside import install
from clusters.frameworks.programs import text
from portal.up.services import free_port
from tests.index import PASSWORD, Index, mirror

INSTALL = text("install.py")
SAYS = "import greeting; print(greeting.TEXT)"


@pytest.fixture
def index() -> Iterator[Index]:
    with closing(Index()) as index:
        yield index


class Making:
    """`begin()` starts one init container that builds the environment in `folder`."""

    def __init__(self, folder: Path, index: Index, url: str) -> None:
        self.folder, self.url = folder, url
        self.lock = index.add("greeting", "1.0", greeting="TEXT = 'hello'") + "\n"

    def begin(self, script: str = "") -> subprocess.Popen[str]:
        packed = self.folder / "lock"
        packed.write_bytes(bz2.compress(self.lock.encode()))
        words = (str(self.folder / "made"), str(packed), str(self.folder / "cache"), "hardlink", script)
        env = {
            "UV_DEFAULT_INDEX": self.url,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/tmp",
        }
        return subprocess.Popen(
            [sys.executable, "-c", INSTALL, *words],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def end(self, process: subprocess.Popen[str], code: int = 0) -> str:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == code, said
        assert PASSWORD not in said
        return said

    @property
    def says(self) -> str:
        return subprocess.run(
            [str(self.folder / "made" / "bin" / "python"), "-c", SAYS], capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture
def making(tmp_path: Path, index: Index) -> Iterator[Making]:
    port = free_port()
    with mirror(index, port):
        yield Making(tmp_path, index, f"http://127.0.0.1:{port}/simple/")


def test_of_several_at_once_one_makes_it_and_the_next_start_finds_it(making: Making, index: Index) -> None:
    counts = "echo once >> $VIRTUAL_ENV/runs"
    for process in [making.begin(counts) for _ in range(3)]:
        making.end(process)
    index.files.clear()
    making.end(making.begin(counts))
    assert index.asked.count("/files/greeting-1.0-py3-none-any.whl") == 1
    assert (making.folder / "made" / "runs").read_text() == "once\n"
    assert making.says == "hello\n"
    assert not (making.folder / "cache").exists()


def test_what_was_left_half_made_is_thrown_away(making: Making) -> None:
    tampers = (
        "echo 'TEXT = 0' > $(dirname $(python -c 'import greeting; print(greeting.__file__)'))/greeting.py; exit 7"
    )
    assert "The script ended with exit code 7." in making.end(making.begin(tampers), 7)
    assert not (making.folder / "made.whole").exists()
    making.end(making.begin())
    assert making.says == "hello\n"


def test_a_package_that_is_not_there_is_named(making: Making) -> None:
    making.lock += making.lock.replace("greeting==", "absent==")
    assert "absent" in making.end(making.begin(), 1)
    assert not (making.folder / "made.whole").exists()


def test_of_an_address_people_read_the_name_of_the_file(capfd: pytest.CaptureFixture[str]) -> None:
    said = "403: it is closed for url http://index:1/files/aHR0cHM6/cowsay-6.1.whl#sha256=ab (from http://index/simple/cowsay/)"
    argv = [sys.executable, "-c", f"raise SystemExit({said!r})"]
    assert install.installed(argv, "Correct it.") == 1
    assert capfd.readouterr().err.startswith("403: it is closed for url cowsay-6.1.whl (from cowsay)\n")


def test_an_installer_that_was_killed_says_so_and_blames_no_package(capfd: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert install.installed(argv, "Correct it.") == 137
    said = "Packages were not installed: the installer was ended, most likely for lack of memory.\n"
    assert capfd.readouterr().err == said


NONE = "ERROR: No matching distribution found for "
CLOSED = "ERROR: HTTP error 403 while getting cow-6.1.whl (from cow)\nERROR: Could not install requirement cow "
RETRIES = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('refused')': /simple/absent/\n"
)


@pytest.mark.parametrize(
    ("said", "is_reached", "sentence"),
    [
        (f"ERROR: Could not find a version that … absent>=2 (from versions: none)\n{NONE}absent>=2",
         True, "Package absent>=2 was not found: the package index has none for Python 3."),
        (f"{RETRIES}ERROR: Could not find a version that … absent>=2 (from versions: none)\n{NONE}absent>=2", False, ""),
        (f"ERROR: Could not find a version that … cow>=99 (from versions: 5.0, 6.0, 6.1)\n{NONE}cow>=99",
         True, "Package cow>=99 was not found: the newest version in the package index is 6.1."),
        ("ERROR: HTTP error 502 while getting cow-6.1-py3-none-any.whl (from cow)", True, ""),
        (f"{CLOSED}because of HTTP error 403 Client Error: A file lies on a server that is closed for url: cow-6.1.whl",
         True, "cow-6.1.whl cannot be fetched: A file lies on a server that is closed."),
        ("ERROR: Cannot install cow==6.0 and cow>6.0 because these package versions have conflicting dependencies.\nERROR: Res",
         True, "cow==6.0 and cow>6.0 cannot be installed together: each needs other versions."),
        ("  error: subprocess-exited-with-error\n  ╰─> [6 lines of output]\n╰─> mysqlclient\nnote: This is an issue with",
         True, "Package mysqlclient cannot be installed: the package index has no wheel of it for this image."),
        ("OSError: [Errno 28] No space left on device", True, "The packages cannot be installed: the disk is full"),
        ("error: Failed to fetch: `absent`\n  Caused by: Request failed\n  Caused by: error sending request", True, ""),
        ("  × No solution found:\n  ╰─▶ Because absent was not found in the package\n      registry and you require",
         True, "Package absent was not found: the package index has none for Python 3."),
        ("warning: old\nERROR: something else\n\n", True, "Packages cannot be installed: something else."),
    ],
)  # fmt: skip
def test_one_sentence_says_which_package_and_why(said: str, is_reached: bool, sentence: str) -> None:
    """An index that cannot be reached looks to pip like one that has nothing; it alone deserves another try."""
    code, why = install.reason(said, lambda _: is_reached)
    is_wrong = "disk" not in sentence and "cannot be fetched" not in sentence
    assert code == (install.SILENT if not sentence else install.WRONG if is_wrong else install.OTHERS)
    assert why.startswith(sentence or install.UNREACHED)


def test_a_silent_index_is_tried_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock").write_bytes(bz2.compress(b"# requirements\nabsent>=2\n"))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple/")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(install, "PAUSE", 0)
    monkeypatch.setattr(install, "PATIENCE", 1)
    made = [str(tmp_path / name) for name in ("made", "lock", "cache")]
    assert install.once(*made, "copy", "") == install.SILENT == INDEX_UNREACHED
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"{install.UNREACHED} It was tried for ")


def test_an_index_with_a_password_is_asked_with_it_and_nothing_says_it(
    index: Index, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    assert PASSWORD in index.url
    assert install.reached("greeting")
    assert "greeting" in index.asked[-1], "with its account: `asked` has no others"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://name:{PASSWORD}@127.0.0.1:{free_port()}/simple/")
    assert not install.reached("greeting")
    assert PASSWORD not in "".join(capfd.readouterr())
