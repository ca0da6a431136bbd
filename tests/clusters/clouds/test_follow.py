"""Following growing files: copies are only appended to, and become what the bucket has, whatever happens there."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.follow import AGAIN, Follower, Listed, Trouble, is_plain

PATHS = ("events.out.tfevents.1", "train/events.out.tfevents.2", "a/b/x.tfevents.v2")


def content(version: int, size: int) -> bytes:
    """Content whose every eight bytes are in no other version, as event files have times and checksums in their records."""
    return b"".join(struct.pack(">HH", version, place) for place in range(size // 4 + 1))[:size]


class Bucket:
    """A bucket in memory. `between` runs once, between a listing and the first read after it."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.versions: dict[str, set[int]] = {}
        self.last = self.stored = 0
        self.stamps: dict[str, int] = {}
        self.fetched = 0
        self.away = False
        self.between: Callable[[], None] | None = None

    def put(self, path: str, size: int, *, replace: bool) -> None:
        version = self.files.get(path, (0, 0))[0]
        if replace or not version:
            self.last += 1
            version = self.last
        self.files[path] = version, size
        self.versions.setdefault(path, set()).add(version)
        self.stored += 1
        self.stamps[path] = self.stored

    def bytes_of(self, path: str) -> bytes:
        return content(*self.files[path])

    def list(self) -> list[Listed]:
        if self.away:
            raise Trouble("away")
        return [Listed(path, size, str(self.stamps[path])) for path, (_, size) in self.files.items()]

    def read(self, path: str, start: int, length: int) -> bytes:
        if self.between:
            happens, self.between = self.between, None
            happens()
        assert length > 0
        if path not in self.files:
            return b""
        data = self.bytes_of(path)[start : start + length]
        self.fetched += len(data)
        return data


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from(PATHS), st.integers(1, 60)),
        st.tuples(st.just("replace"), st.sampled_from(PATHS), st.integers(0, 90)),
        st.tuples(st.just("meanwhile"), st.sampled_from(PATHS), st.integers(0, 90)),
        st.tuples(st.just("remove"), st.sampled_from(PATHS), st.just(0)),
        st.tuples(st.sampled_from(["round", "round", "restart", "away"]), st.just(""), st.just(0)),
    ),
    max_size=25,
)


def happen(bucket: Bucket, what: str, path: str, size: int) -> None:
    if what == "grow":
        bucket.put(path, bucket.files.get(path, (0, 0))[1] + size, replace=False)
    elif what == "replace":
        bucket.put(path, size, replace=True)
    elif what == "meanwhile":
        bucket.between = lambda: bucket.put(path, size, replace=True)
    elif what == "remove":
        bucket.files.pop(path, None)
    else:
        bucket.away = not bucket.away


@given(STEPS)
def test_copies_only_grow_and_become_what_is_there(steps: list[tuple[str, str, int]]) -> None:
    bucket = Bucket()
    with tempfile.TemporaryDirectory() as folder:

        def follower() -> Follower:
            return Follower(bucket, folder, overlap=8, chunk=16)

        following, before = follower(), {}
        for what, path, size in [*steps, ("drain", "", 0)]:
            if what == "restart":
                following = follower()
            elif what == "round":
                with contextlib.suppress(Trouble):
                    following.round()
            elif what == "drain":
                bucket.away = False
                # Each round fetches a piece of every file; a late change needs another listing.
                for _ in range(40):
                    following.round()
            else:
                happen(bucket, what, path, size)
            now = _copies(folder)
            for name, data in now.items():
                assert data.startswith(before.get(name, b"")), "a copy was written again"
                versions = bucket.versions[AGAIN.sub("", name)]
                assert any(content(version, len(data)) == data for version in versions)
            before = now
        for path in bucket.files:
            assert _current(before, path) == bucket.bytes_of(path)
        fetched = bucket.fetched
        assert not following.round()
        assert bucket.fetched == fetched, "nothing new, and yet something was fetched"
        assert following.held == sum(map(len, before.values()))


def test_only_new_bytes_are_fetched(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.put("tfevents", 10_000, replace=True)
    following = Follower(bucket, str(tmp_path), overlap=64)
    assert not following.round()
    bucket.put("tfevents", 10_100, replace=False)
    following.round()
    assert bucket.fetched == 10_000 + 64 + 100
    assert (tmp_path / "tfevents").read_bytes() == bucket.bytes_of("tfevents")


def test_what_is_open_stays_as_it_was_and_its_successor_lies_beside_it(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.put("tfevents", 50, replace=True)
    old = bucket.bytes_of("tfevents")
    following = Follower(bucket, str(tmp_path), overlap=8)
    following.round()
    with open(tmp_path / "tfevents", "rb") as file:
        bucket.put("tfevents", 80, replace=True)
        assert following.round()
        following.round()
        assert file.read() == old
    assert _copies(str(tmp_path)) == {"tfevents.again-2": bucket.bytes_of("tfevents")}


def test_what_is_gone_stays_to_be_seen(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.put("tfevents", 50, replace=True)
    following = Follower(bucket, str(tmp_path), overlap=8)
    following.round()
    copies = _copies(str(tmp_path))
    bucket.put("tfevents", 60, replace=False)
    bucket.between = lambda: bucket.files.pop("tfevents") and None  # after it was listed
    following.round()
    following.round()
    assert _copies(str(tmp_path)) == copies


def test_it_ends_at_its_bounds_and_says_so(tmp_path: Path) -> None:
    bucket = Bucket()
    for number in range(3):
        bucket.put(f"{number}.tfevents", 40, replace=True)
    following = Follower(bucket, str(tmp_path), most=100)
    following.round()
    assert sorted(_copies(str(tmp_path))) == ["0.tfevents", "1.tfevents"]
    assert "are not followed" in following.problem


def test_a_name_that_cannot_be_kept_stops_no_other(tmp_path: Path) -> None:
    bucket = Bucket()
    for path in (
        "../tfevents",
        "/tfevents",
        "a//tfevents",
        "x.tfevents",
        "x.tfevents/y.tfevents",
        "n" * 300 + "tfevents",
    ):
        bucket.put(path, 8, replace=True)
    following = Follower(bucket, str(tmp_path))
    following.round()
    assert list(_copies(str(tmp_path))) == ["x.tfevents"]
    assert "cannot be kept" in following.problem
    assert not is_plain("x.tfevents.again-3")


def _copies(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _current(copies: dict[str, bytes], path: str) -> bytes:
    named = [name for name in copies if AGAIN.sub("", name) == path]
    return copies[max(named, key=len)] if named else b""
