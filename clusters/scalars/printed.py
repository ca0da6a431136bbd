"""Reads the scalars of a run without output from what its program prints. Pure.

The idea: a line with a step and named numbers is a point: `step 75: loss = 0.41, accuracy = 0.92`, `Epoch [3/5], loss: 0.2`,
`{'loss': '0.4', 'epoch': '1.0'}`, `iter 10 | train loss 3.2 | lr 0.1`, `[7] train-rmse:0.38`. So every program that prints its
progress has charts, even in an appcode without a datastore. Names of up to three words are kept whole, since "test loss" is
another curve than "loss". Without a colon or an equals sign, all of a part of a line has to be names and numbers: in
"epoch 5 took 12.3 seconds" there is none. The marks of the log tell when a number was printed.

Keras and many tutorials print the epoch on its own line, `Epoch 3/5`. Lines below it count for it if they begin with a name
and a number, or with a progress bar. A second bar after a full one ends the epoch, since `evaluate` draws one, too. The lines
right below a line with a step count for that step if they begin like that: PyTorch's examples print the test loss so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusters.clouds.drivers import marks
from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Curve, Point, Scalars, Series

# Possessive quantifiers, because a long run of spaces or digits could otherwise be split in many ways.
STEP = re.compile(
    r"(?i)\b(?:global_?step|step|iteration|iter|epoch|episode|round)\b['\"]?\s*+(?:[:=#]\s*+)?['\"\[]?\s*+(\d{1,15})\b"
)
# XGBoost and LightGBM: `[7]` and a tab; tutorials: `[2,  4000] loss: 1.8`.
BRACKET = re.compile(r"\s*\[\s*(\d{1,15})(?:\s*+[,/]\s*+\d+)?\s*\](?=\s*+\S)")
# LightGBM prints `valid_0's l2`.
WORD = rf"[A-Za-z](?:[\w/.@-]|'(?=s )){{0,{MAX_TAG - 1}}}"
NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+(?:[eE][-+]?\d+)?|nan|inf)"
PAIR = re.compile(rf"(?<![\w/.-])['\"]?((?:{WORD} ){{0,2}}{WORD})['\"]?\s*[:=]\s*['\"]?({NUMBER})(?![\w.%:/-])")
# What separates the parts of a line, and what a part says in brackets, such as the mean of a value.
PARTS, ASIDE = re.compile(r"[,;|\t{}\[\]]|\s-\s"), re.compile(r"\([^()]*\)")
IS_WORD, IS_NUMBER = re.compile(WORD), re.compile(NUMBER)
# Words that belong to no name.
NO_NAMES = frozenset({
    "a", "after", "and", "at", "by", "for", "from", "in", "is", "of", "on", "the", "to", "took", "until", "was", "with",
    "debug", "error", "info", "warning",
})  # fmt: skip
# Lightning's progress bar shows the number of its version.
NO_METRICS = frozenset({"v_num"})
HEADING = re.compile(r"(?i)\s*epoch\b\s*+[:#]?\s*+(\d{1,15})\s*+(?:/\s*+\d+\s*+)?:?\s*")
BAR = re.compile(r"\s*(\d+)/(\d+|Unknown)\b")
# A line of numbers, perhaps after a title: `Test set: Average loss: 0.0455`.
BELOW = re.compile(rf"(?:[A-Za-z][\w ]{{0,40}}:\s+)?{PAIR.pattern}")
MOST_BELOW = 3
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Characters of a line that are searched for numbers.
MAX_LINE = 2000


def scalars_of_log(data: bytes, notes: Iterable[str] = (), marked: bytes = b"") -> Scalars:
    """A curve for each name of a log that begins with `data` and has the marks `marked`, in any order. If a step was printed
    twice, as after a restart, the later line counts."""
    series: dict[str, Series] = {}
    for at, step, pairs in _points(_lines(data, marked)):
        for name, text in pairs:
            if name not in series and len(series) >= MAX_LINES_PER_FILE:
                continue
            series.setdefault(name, Series()).add(Point(step, at, float(text)))
    curves = []
    for name, each in series.items():
        # The later of two lines with one step counts; so what is known of extremes alone comes first.
        by_step = {point.step: point for point in (*each.extremes, *each.all)}
        curves.append(Curve(name, "", tuple(by_step[step] for step in sorted(by_step))))
    return Scalars(tuple(curves), 0, tuple(notes))


def _lines(data: bytes, marked: bytes) -> Iterator[tuple[float, str]]:
    """Each line with the time at which it began, in seconds since 1970; 0 if unknown."""
    known, offset, n, at = sorted(set(marks.each(marked))), 0, 0, 0.0
    for line in data.splitlines(keepends=True):
        while n < len(known) and known[n][marks.OFFSET] <= offset:
            at, n = known[n][marks.TIME] / 1e6, n + 1
        yield at, line.decode(errors="replace").rstrip("\r\n")
        offset += len(line)


def _points(lines: Iterable[tuple[float, str]]) -> Iterator[tuple[float, int, list[tuple[str, str]]]]:
    """Time and numbers of each line, with the step that it names, or else that of the line or the heading above it."""
    epoch: int | None = None
    bar = ("", " ")
    step, left = 0, 0
    for at, drawn in lines:
        # Keras redraws its bar with backspaces: only the last one counts.
        line = _COLOUR.sub("", drawn.rstrip("\b").rpartition("\b")[2])[:MAX_LINE]
        if found := HEADING.fullmatch(line):
            epoch, bar, left = int(found[1]), ("", " "), 0
        elif found := STEP.search(line) or BRACKET.match(line):
            pairs = _pairs(f"{line[: found.start()]}|{line[found.end() :].lstrip(' :])-')}")
            step, left = int(found[1]), MOST_BELOW if pairs else 0
            yield at, step, pairs
        elif epoch is not None and (found := BAR.match(line)):
            if bar[0] == bar[1] and found.groups() != bar:
                epoch = None
            else:
                bar = (found[1], found[2])
                yield at, epoch, _pairs(line)
        elif epoch is not None and PAIR.match(line.lstrip()):
            yield at, epoch, _pairs(line)
        elif left and line.strip():
            left -= 1
            if epoch is None and BELOW.match(line.lstrip()):
                yield at, step, _pairs(line)


def _pairs(line: str) -> list[tuple[str, str]]:
    """The names and numbers of a line, in its order."""
    pairs = list[tuple[str, str]]()
    for part in PARTS.split(line):
        if found := PAIR.findall(part):
            several = [(name.split(), text) for name, text in found]
        else:
            several = _unmarked(ASIDE.sub(" ", part).split())
        for words, text in several:
            while any(word.lower() in NO_NAMES for word in words):
                words = words[1:]
            name = " ".join(words)
            if words and name not in NO_METRICS and not STEP.match(f"{words[-1]} 0"):
                pairs.append((name, text))
    return pairs


def _unmarked(tokens: list[str]) -> list[tuple[list[str], str]]:
    """Names and numbers that nothing but space separates; none if there is anything else, or a word that belongs to no name."""
    found, words = list[tuple[list[str], str]](), list[str]()
    for token in tokens:
        if IS_NUMBER.fullmatch(token) and words:
            found.append((words, token))
            words = []
        elif IS_WORD.fullmatch(token) and token.lower() not in NO_NAMES and len(words) < 3:
            words = [*words, token]
        else:
            return []
    return [] if words else found


def last_printed(data: bytes, name: str) -> float | None:
    """The last number printed under this name, in a line with or without a step; None if there is none. A name of several
    words is also found by its last one."""
    for line in reversed(data.decode(errors="replace").splitlines()):
        if found := [text for each, text in _pairs(line[:MAX_LINE]) if name in (each, each.split()[-1])]:
            return float(found[-1])
    return None
