"""How the files of a divided input are distributed to tasks."""

from __future__ import annotations

import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.kubernetes.render import storage
from clusters.clouds.drivers.kubernetes.settings import quantity
from clusters.clouds.drivers.parts import VALIDATION, main, shown

NAMES = st.sets(st.text(min_size=1, max_size=6).filter(lambda name: name.isprintable()), max_size=40)


def divided(names, part, parts, fold, folds):
    """(training files, held-out files)"""
    found = list(shown(names, part, parts, fold, folds))
    held = [name for name, appears in found if appears == f"{VALIDATION}/{name}"]
    return [name for name, appears in found if appears != f"{VALIDATION}/{name}"], held


@given(NAMES, st.integers(1, 6), st.integers(0, 6), st.randoms())
def test_every_file_is_read_by_one_task_and_held_out_by_one_fold(names, parts, folds, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    held_out = []
    for fold in range(1, folds + 1) if folds > 1 else [0]:
        shares = [divided(shuffled, part, parts, fold, folds if folds > 1 else 0) for part in range(parts)]
        assert shares == [divided(names, part, parts, fold, folds if folds > 1 else 0) for part in range(parts)], (
            "stable"
        )
        held = shares[0][1]
        assert all(share[1] == held for share in shares), "all see what is held out"
        read = [name for share in shares for name in share[0]]
        assert sorted(read + held) == sorted(names)
        sizes = [len(share[0]) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert divided(names, 0, 0, fold, folds if folds > 1 else 0)[0] == sorted(read, key=str.encode)
        assert divided(names, -1, parts, fold, folds if folds > 1 else 0) == ([], held)
        held_out += held
    assert sorted(held_out) == (sorted(names) if folds > 1 else [])


def test_links_are_made_to_the_files_of_a_task_and_to_nothing_that_was_there_before(tmp_path):
    whole, into = tmp_path / "whole", tmp_path / "into"
    (into / "left").mkdir(parents=True)
    (into / "left" / "over").symlink_to("nowhere")
    for name in ("a", "deep/b\n", "deep/er/c"):
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        (whole / name).write_text(name)
    (whole / "link").symlink_to("a")
    for first, index, expected in ((1, 1, ["deep/er/c"]), (0, 0, ["a"]), (-1, 0, [])):
        for _ in range(2):
            main("--links", str(first), str(index), "3", "0", "0", str(whole), str(into))
        found = [path for path in into.rglob("*") if not path.is_dir()]
        assert [str(path.relative_to(into)) for path in found] == expected
        assert [path.read_text() for path in found] == expected
    main("--links", "-1", "0", "0", "2", "3", str(whole), str(into))
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*") if not path.is_dir()) == [
        "train/a",
        "train/deep/er/c",
        "validation/deep/b\n",
    ]


def test_a_million_files_fit_into_the_container_that_divides_them():
    program = (
        "from clusters.clouds.drivers.parts import shown\n"
        "names = (f'photos/train/n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG' for n in range(1_000_000))\n"
        "print(sum(1 for _ in shown(names, 0, 1, 1, 5)), open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert done.startswith("1000000 ")
    (kib,) = re.findall(r"VmHWM:\s*([0-9]+) kB", done)
    # Leave room for the kernel's memory for the links.
    assert int(kib) * 1024 < 0.6 * quantity(storage._HELPER["memory"])
