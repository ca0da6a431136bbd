"""What usually mends a failure, by the error that programs really print."""

from __future__ import annotations

import pytest

from clusters.logs.failure import before_error
from clusters.logs.remedies import remedy

ERRORS = [
    (
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 79.10 GiB"),
        "flavor", "GPU is full",
    ),
    (
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
        "__wrapped__Conv2D}} OOM when allocating tensor"),
        "flavor", "GPU is full",
    ),
    (
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array with "
        "shape (100000, 1000000)"),
        "flavor", "too small",
    ),
    (
        ("RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of"),
        "flavor", "loader",
    ),
    ("ModuleNotFoundError: No module named 'transformers.models'", "requirements", "The image has no transformers."),
    ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory", "image", "libGL.so.1"),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/elearn/input/train.csv'",
        "input", "nothing at /elearn/input/train.csv.",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'conf/base.yaml'",
        "command", "no conf/base.yaml where",
    ),
    (
        "python: can't open file '/elearn/code/trian.py': [Errno 2] No such file or directory",
        "command", "no /elearn/code/trian.py",
    ),
    ("OSError: [Errno 30] Read-only file system: '/elearn/input/cache'", "command", "read-only"),
    ("OSError: [Errno 28] No space left on device", "command", "full"),
    (
        ("[rank3]:[E1130 10:00:00 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=12"),
        "logs", "late or gone",
    ),
    (
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, "
        "ncclSystemError: System call"),
        "logs", "lost their connection",
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", "env", "out of range"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "image", "other GPUs"),
    ("AssertionError: Torch not compiled with CUDA enabled", "flavor", "no GPU"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x100 and 64x10)", "command", "shapes do not fit"),
    ("ValueError: Shapes (None, 1) and (None, 10) are incompatible", "command", "shapes do not fit"),
    (
        "wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.",
        "env", "Set WANDB_MODE=offline:",
    ),
    (
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        "env", "Set WANDB_MODE=offline:",
    ),
    ("KeyError: 'WANDB_API_KEY'", "env", "WANDB_API_KEY is not set"),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "input", "could not be reached"),
    ("bash: line 1: pyhton: command not found", "command", "no program pyhton"),
    ("train.py: error: unrecognized arguments: --epoch 3", "command", "--help"),
    ("SyntaxError: invalid syntax", "command", "cannot read"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "place", "words"), ERRORS, ids=[error[:30] for error, _, _ in ERRORS])
def test_a_known_error_has_a_sentence_and_a_place(error: str, place: str, words: str) -> None:
    found = remedy("Error", 1, error)
    assert found is not None
    assert found.place == place
    assert words in found.sentence


def test_the_cloud_says_some_of_it_and_the_unknown_gets_no_advice() -> None:
    found = [remedy(*said, "") for said in (("OOMKilled", 137), ("ImageNotPulled", None), ("Error", 127))]
    assert [each and each.place for each in found] == ["flavor", "image", "command"]
    for error in ("", "ValueError: the loss is not what I like", "KeyError: 'label'", "RuntimeError: nothing"):
        assert remedy("Error", 1, error) is None


def test_the_error_is_shown_with_the_lines_before_it() -> None:
    log = [f"step {n}" for n in range(30)]
    log += ["Traceback (most recent call last):", '  File "a.py", line 3', "KeyError: 'x'", "[INFO] closing"]
    before, error = before_error("\n".join(log))
    assert (len(before), before[0], before[-1], error) == (10, "step 22", '  File "a.py", line 3', "KeyError: 'x'")
    assert before_error("all is well\nnearly") == ([], "")


def traceback(*files: str, source: str = "run()") -> list[str]:
    head = "Traceback (most recent call last):"
    return [
        head,
        *(line for n, file in enumerate(files) for line in (f'  File "{file}", line {n}, in f', f"    {source}")),
    ]


LIBRARY = [
    "/usr/local/lib/python3.12/site-packages/wandb/sdk/wandb_init.py",
    "/usr/lib/python3/dist-packages/click/core.py",
    "/usr/lib/python3.12/runpy.py",
    "<frozen importlib._bootstrap>",
    "<string>",
]


def test_an_error_deep_in_a_library_names_the_line_of_the_program_that_led_there() -> None:
    own = ["/elearn/work/train.py", "/elearn/work/lib/model.py"]
    before, error = before_error(
        "\n".join([*traceback(*own, *LIBRARY, *LIBRARY), "wandb.errors.errors.UsageError: no"])
    )
    assert before[:3] == ['  File "/elearn/work/lib/model.py", line 1, in f', "    run()", "  …"]
    assert len(before) == 3 + 10
    assert error == "wandb.errors.errors.UsageError: no"
    # The frame is whole where the ten lines begin inside it, and is not said twice.
    lines = traceback(own[0], *LIBRARY)
    assert before_error("\n".join([*lines, "ValueError: x"]))[0] == lines[1:]
    lines = traceback(own[0], *LIBRARY[1:])
    assert before_error("\n".join(["step 1", *lines, "ValueError: x"]))[0] == lines[1:]
    # Only the traceback of the error itself counts, and one without own frames has its last lines.
    lines = [*traceback(own[0]), "KeyError: 'x'", "During handling of it:", *traceback(*LIBRARY, *LIBRARY)]
    assert before_error("\n".join([*lines, "ValueError: x"]))[0] == lines[-10:]
