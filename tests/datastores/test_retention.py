"""What a rule deletes: never the newest, never what is in use, and never more when it keeps more."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastores.drivers.base import Entry
from datastores.files.retention import Held, Item, Output, RuleSpec, candidates, decide, seen_from
from portal.errors import Invalid
from portal.manifests import parse

NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def entry(path: str, days: float = 100, size: int = 1) -> Entry:
    return Entry(path.rpartition("/")[2], path, size=size, modified=NOW - dt.timedelta(days=days))


def going(spec: RuleSpec, files: list[Entry], outputs: list[Output] | None = None) -> set[str]:
    return {item.path for item in candidates(spec, files, outputs or [], NOW)}


def keep(count: int) -> RuleSpec:
    return RuleSpec(kind="checkpoints", keep=count)


@st.composite
def checkpoints(draw: st.DrawFn) -> list[Entry]:
    """Files of one or two checkpoint series, complete and partial, written in any order, and files that are no checkpoints."""
    files = []
    for series in draw(st.sampled_from([["a/ckpt-"], ["a/ckpt-", "b/ckpt-"], ["a/ckpt-", "a/best-"]])):
        for number in draw(st.sets(st.integers(1, 30), max_size=8)):
            days = draw(st.integers(0, 3))
            names = [f"{series}{number}.index", *(f"{series}{number}.data-0000{n}-of-00002" for n in range(2))]
            lost = draw(st.sampled_from([None, None, None, *names]))
            files += [entry(name, days) for name in names if name != lost]
        files += [entry(f"{series}{number}.pb") for number in range(3)]
    return [*files, entry("a/checkpoint"), entry("a/variables.index"), entry("a/variables.data-00000-of-00001")]


def whole(files: list[Entry]) -> list[tuple[str, int, dt.datetime]]:
    found: dict[tuple[str, int], list[Entry]] = {}
    for each in files:
        series, _, rest = each.path.partition("-")
        if series[2:] in ("ckpt", "best") and not rest.endswith(".pb"):
            found.setdefault((series, int(rest.split(".")[0])), []).append(each)
    return [
        (*key, max(each.modified for each in some if each.modified)) for key, some in found.items() if len(some) == 3
    ]


@given(checkpoints(), st.integers(1, 9))
def test_the_last_checkpoints_stay_and_keeping_more_lets_no_more_go(files: list[Entry], count: int) -> None:
    gone = going(keep(count), files)
    assert going(keep(count + 1), files) <= gone
    assert all("ckpt-" in path or "best-" in path for path in gone)
    left = [each for each in files if each.path not in gone]
    for series in {each[0] for each in whole(files)}:
        ours, stay = ([each for each in whole(some) if each[0] == series] for some in (files, left))
        assert len(stay) >= min(count, len(ours))
        for order in (lambda each: each[1], lambda each: (each[2], each[1])):
            assert set(sorted(ours, key=order)[-count:]) <= set(stay)
    # Applying the rule again deletes nothing more.
    assert going(keep(count), left) == set()


@pytest.mark.parametrize(
    "names",
    [
        ["weights.{:02}-0.32.weights.h5", "model-{}-val_loss=0.5.keras", "epoch{:03}.keras", "cp-{:04}.ckpt.index"],
        ["checkpoint-{}.pt", "epoch={}-step=100.ckpt", "model.ckpt-{}.meta", "Epoch_{}.pth"],
    ],
)
def test_names_of_tensorflow_keras_and_pytorch_are_known(names: list[str]) -> None:
    data = ".data-00000-of-00001"
    for name in names:
        files = [entry(name.format(number), 10 - number) for number in (9, 10)]
        if name.endswith((".index", ".meta")):
            stem = name.rpartition(".")[0]
            files += [entry(stem.format(number) + end, 10 - number) for number in (9, 10) for end in (".index", data)]
        first = {each.path for each in files if "10" not in each.path.removesuffix("step=100.ckpt").split(".data")[0]}
        assert going(keep(1), files) == first


@pytest.mark.parametrize(
    "names",
    [
        ["resnet18.keras", "resnet50.keras"],
        ["model-0.91.keras", "model-0.95.keras"],
        ["part-0001.pt", "part-0002.pt"],
        ["data_1.h5", "data_2.h5"],
        ["shard-1.index", "shard-2.index"],
        ["images-00001-of-00002.tfrecord", "images-00002-of-00002.tfrecord"],
    ],
)
def test_parts_of_data_and_models_of_other_names_are_no_series(names: list[str]) -> None:
    assert going(keep(1), [entry(name) for name in names]) == set()


def test_a_failed_output_goes_when_nobody_else_wrote_there_and_nobody_has_written_since() -> None:
    ago = NOW - dt.timedelta(days=20)
    outputs = [
        Output("a/1", "a/1", ago),
        Output("a/2", "a/2", None),
        Output("a/3", "a/3", NOW - dt.timedelta(days=2)),
        Output("a/4", "a/4", ago),
        Output("shared", "b/1", ago),
        Output("shared", "b/2", None),
        Output("above", "c/1", ago),
        Output("above/d/1", "d/1", None),
        Output("", "e/1", ago),
        Output("a/5", "a/5", ago),
    ]
    files = [entry(f"{output.folder or 'top'}/deep/x", size=5) for output in outputs] + [entry("a/4/new", days=1)]
    spec = RuleSpec(kind="failed-runs", days=14)
    found = candidates(spec, files, outputs, NOW)
    assert {item.path: (item.files, item.size) for item in found} == {"a/1": (1, 5), "a/5": (1, 5)}
    inside = RuleSpec(kind="failed-runs", path="a/1/deep", days=14)
    assert candidates(inside, [each for each in files if each.path.startswith("a/1/deep/")], outputs, NOW) == []


PATHS = st.sampled_from(["a", "a/b", "a/b/c", "ab", "a/bc", "d"])


@given(
    st.dictionaries(PATHS, st.booleans()),
    st.lists(st.sampled_from(["", "a", "a/b", "a/b/c", "a/bc/x", "d"]), max_size=2),
)
def test_what_is_held_stays_and_everything_else_goes(paths: dict[str, bool], folders: list[str]) -> None:
    items = [Item(path, is_folder, 1, 7) for path, is_folder in paths.items()]
    found = decide(items, [Held(folder, f"{folder} is read") for folder in folders])

    def touches(item: Item, folder: str) -> bool:
        below = f"{item.path}/".startswith(f"{folder}/" if folder else "")
        return below or (item.is_folder and folder.startswith(f"{item.path}/"))

    assert {item.path for item in found.going} == {
        item.path for item in items if not any(touches(item, folder) for folder in folders)
    }
    assert sum(each.files for each in found.kept) + found.files == len(items)


@pytest.mark.parametrize(
    ("top", "other", "folder", "seen"),
    [
        ("b", "b", "f", "f"),
        ("b", "b/p", "f", "p/f"),
        ("b", "b/p", "", "p"),
        ("b/p", "b", "", ""),
        ("b/p", "b", "p", ""),
        ("b/p", "b", "p/x", "x"),
        ("b/p", "b", "q", None),
        ("b/p", "b/pq", "", None),
    ],
)
def test_two_datastores_at_one_place_hold_the_same_files(top: str, other: str, folder: str, seen: str | None) -> None:
    found = seen_from(top, other, Held(folder, "why"))
    assert (found.folder if found else None) == seen


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"kind": "checkpoints", "days": 3}, "keep"),
        ({"kind": "checkpoints", "keep": 3, "days": 3}, "days"),
        ({"kind": "files", "keep": 3}, "days"),
        ({"kind": "files", "days": 0}, "days"),
        ({"kind": "files", "days": 1, "path": "../x"}, "path"),
    ],
)
def test_a_rule_says_just_what_its_kind_needs(said: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(RuleSpec, said)
    assert [error.path[-1] for error in caught.value.errors] == [field]
