"""Which files each task gets of an input that is divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.parts import divided

NAMES = st.sets(st.text(min_size=1, max_size=6).filter(lambda name: name.isprintable()), max_size=40)


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
