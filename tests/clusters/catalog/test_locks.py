"""Merging several lock files into one."""

from __future__ import annotations

import pytest

from clusters.catalog.locks import pins, together, versions, written

A = "a==1.0 --hash=sha256:" + "0" * 64 + "\n"
A2 = A.replace("1.0", "2.0")
B = "b==3 --hash=sha256:" + "1" * 64 + " --hash=sha256:" + "2" * 64 + "\n"


def test_what_several_need_is_there_once_whatever_their_order() -> None:
    assert together({"one": A, "two": B + A}) == together({"two": A + B, "one": A}) == A + B
    assert versions(A + B) == {"a": "1.0", "b": "3"}
    assert together({}) == ""


def test_two_versions_of_one_package_name_whose_they_are() -> None:
    with pytest.raises(ValueError, match=r"one:1 has a 1.0 and two:4 2.0; choose one of the two"):
        together({"one:1": A + B, "two:4": A2})


@pytest.mark.parametrize(
    "line", ["a==1", "a @ https://x/a.whl", "--index-url https://x", "-e .", "a>=1 --hash=sha256:" + "0" * 64]
)
def test_a_lock_has_nothing_but_versions_and_hashes(line: str) -> None:
    with pytest.raises(ValueError, match="without hashes"):
        pins(A + line + "\n")


def test_what_uv_writes_becomes_one_line_for_each_package() -> None:
    said = "# said by uv\n" + B.replace(" --hash", " \\\n    --hash")
    assert written(pins(said)) == B
