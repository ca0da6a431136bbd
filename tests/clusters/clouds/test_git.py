"""Code from a real Git server, and from a malicious one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from dulwich.objects import Blob, Commit, Tree

from clusters.clouds.drivers import git
from clusters.clouds.drivers.git import Failed, Login, Refused, anywhere, checkout, resolve
from tests.gitserver import GitServer, Repository, git_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "served").mkdir()
    with git_server(tmp_path / "served") as made:
        yield made


@pytest.fixture
def repository(server: GitServer) -> Repository:
    return server.repository()


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """fetch(url, commit) → the files of that commit."""

    def fetch(url: str, commit: str, login: Login = Login()) -> dict[str, str]:  # noqa: B008
        folder, store = tmp_path / f"files-{commit}", tmp_path / f"store-{commit}"
        folder.mkdir()
        store.mkdir()
        checkout(url, commit, str(folder), str(store), login, anywhere)
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

    return fetch


def why(call: Callable[[], object]) -> str:
    with pytest.raises(Failed) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_ref_names_a_commit_whose_files_are_fetched_though_the_branch_went_on(repository, files) -> None:
    first = repository.commit({"train.py": "1", "lib/run.sh": "echo"}, tag="v1")
    second = repository.commit({"train.py": "2"})
    other = repository.commit({"train.py": "3"}, branch="team/other")
    ref = lambda name: resolve(repository.url, name, Login(), anywhere)  # noqa: E731
    assert [ref(name) for name in ("v1", "main", "", "refs/heads/main", "team/other", first)] == [
        first, second, second, second, other, first,
    ]  # fmt: skip
    assert files(repository.url, first) == {"train.py": "1", "lib/run.sh": "echo"}
    assert files(repository.url, second) == {"train.py": "2", "lib/run.sh": "echo"}


def test_what_cannot_be_had_is_said_in_a_sentence(server, repository, files) -> None:
    repository.commit({"a": "1"})
    ask = lambda url, ref="main", connect=anywhere: why(lambda: resolve(url, ref, Login(), connect))  # noqa: E731
    assert ask(repository.url, "nix") == f"Refused: {repository.url} has no branch or tag “nix”."
    assert ask(f"{server.url}/other.git").startswith(f"Refused: There is no Git repository at {server.url}/other.git")
    assert ask("http://127.0.0.1:1/x.git") == "Failed: 127.0.0.1:1 cannot be reached."
    assert ask("https://nowhere.invalid/x.git") == "Failed: nowhere.invalid cannot be reached."

    def closed(host: str, port: int) -> socket.socket:
        raise Refused(f"{host}:{port} is closed.")

    asked = len(server.asked)
    assert ask(repository.url, "main", closed) == f"Refused: {server.url.removeprefix('http://')} is closed."
    assert len(server.asked) == asked, "it is not even connected to"
    assert why(lambda: files(repository.url, "1" * 40)).startswith("Failed: ")


def test_a_private_repository_wants_its_token_and_no_other_server_gets_it(server, repository, files) -> None:
    commit = repository.commit({"a": "1"})
    server.login = "oauth2:secret"
    right = Login("oauth2", "secret")
    assert "wants a name and a token" in why(lambda: resolve(repository.url, "main", Login(), anywhere))
    assert "refused the name and token" in why(
        lambda: resolve(repository.url, "main", Login("oauth2", "old"), anywhere)
    )
    assert resolve(repository.url, "main", right, anywhere) == commit
    assert files(repository.url, commit, right) == {"a": "1"}
    assert "secret" not in repr(right)
    with git_server(server.folder) as elsewhere:
        server.redirect = elsewhere.url
        assert "leads to another server" in why(lambda: resolve(repository.url, "main", right, anywhere))
        assert elsewhere.asked == []


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"../../x"])
def test_no_name_leads_out_of_the_folder(name: bytes, tmp_path: Path, server, repository) -> None:
    commit = evil(repository, [(name, 0o100644, b"harm")])
    assert "leads elsewhere" in why(lambda: fetch(repository, commit, tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["files", "served", "store"]


def test_nothing_is_written_through_a_link(tmp_path: Path, repository) -> None:
    (tmp_path / "outside").mkdir()
    commit = evil(repository, [(b"a", 0o120000, os.fsencode(tmp_path / "outside")), (b"a", 0o040000, b"")])
    # Of two entries with the same name, the checkout takes one or neither.
    with suppress(Failed):
        fetch(repository, commit, tmp_path)
    assert list((tmp_path / "outside").iterdir()) == []


def test_more_than_is_read_is_not_written(tmp_path: Path, repository, monkeypatch) -> None:
    commit = repository.commit({f"d/{n}": "x" * 1000 for n in range(50)})
    monkeypatch.setattr(git, "MOST_FILES", 20)
    assert "put data into a datastore" in why(lambda: fetch(repository, commit, tmp_path))
    monkeypatch.setattr(git, "MOST_FETCHED", 500)
    (tmp_path / "again").mkdir()
    assert "sent more than is read" in why(lambda: fetch(repository, commit, tmp_path / "again"))


def test_a_server_that_never_comes_to_an_end_is_given_up(monkeypatch) -> None:
    class Drip(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"0008abcd")
                    done.wait(0.02)
            except OSError:
                pass

        def log_message(self, *_: object) -> None: ...

    done = Event()
    monkeypatch.setattr(git, "ASK", 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Drip) as drip:
        Thread(target=drip.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{drip.server_port}/x.git"
        assert "took longer than 0.5 seconds" in why(lambda: resolve(url, "main", Login(), anywhere))
        done.set()
        drip.shutdown()


def test_as_a_program_it_says_what_went_wrong_and_keeps_the_token_to_itself(tmp_path: Path, server, repository) -> None:
    commit = repository.commit({"sub/go.sh": "echo"})
    server.login = "git:very-secret"

    def run(path: str, token: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        (folder / "of-an-earlier-try").touch()
        argv = [
            sys.executable,
            "-I",
            git.__file__,
            repository.url,
            commit,
            str(folder),
            str(tmp_path / "objects"),
            path,
        ]
        env = {"GIT_NAME": "git", "GIT_TOKEN": token, "HOME": "/nonexistent"}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = run("sub", "very-secret")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in (tmp_path / "code").rglob("*")] == ["sub", "go.sh"]
    assert not (tmp_path / "objects").exists()
    assert "very-secret" not in "".join(path.read_text() for path in (tmp_path / "code").rglob("*") if path.is_file())
    done = run("other", "very-secret")
    assert (done.returncode, done.stderr) == (
        77,
        f"There is no folder other in commit {commit[:12]} of {repository.url}.\n",
    )
    done = run("sub", "wrong-secret")
    assert done.returncode == 77
    assert "refused the name and token" in done.stderr
    assert "secret" not in done.stderr


def fetch(repository: Repository, commit: str, folder: Path) -> None:
    for name in ("files", "store"):
        (folder / name).mkdir(exist_ok=True)
    checkout(repository.url, commit, str(folder / "files"), str(folder / "store"), Login(), anywhere)


def evil(repository: Repository, entries: list[tuple[bytes, int, bytes]]) -> str:
    """A commit that Git itself would not make, with these (name, mode, content) entries in its tree; a folder has one file."""
    from dulwich.repo import Repo

    repository.commit({"a": "1"})
    with Repo(str(repository.folder)) as repo:
        inside = Blob.from_string(b"harm")
        below = Tree()
        below.add(b"inside", 0o100644, inside.id)
        repo.object_store.add_objects([(inside, None), (below, None)])
        text = b""
        for name, mode, content in entries:
            made = below if mode == 0o040000 else Blob.from_string(content)
            repo.object_store.add_object(made)
            text += b"%o %s\0" % (mode, name) + bytes.fromhex(made.id.decode())
        top = Tree.from_string(text)
        commit = Commit()
        commit.tree = top.id
        commit.author = commit.committer = b"x <x@example.com>"
        commit.author_time = commit.commit_time = 0
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"x"
        repo.object_store.add_objects([(top, None), (commit, None)])
        repo.refs[b"refs/heads/evil"] = commit.id
        return commit.id.decode()
