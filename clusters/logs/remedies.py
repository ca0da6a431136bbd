"""What usually mends a failure: a small table of known errors. Pure.

The idea: most failures of training programs are a few dozen that everybody meets once. Each has one sentence on what
helps, and the place where to do it. What the table does not know is left to the error itself: no advice is better than a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

# Where to mend it: a section of the form for the next run, by the id of its field; the input; or the other tasks' logs.
Place = Literal["flavor", "requirements", "image", "env", "command", "time_limit", "input", "output", "logs"]


@dataclass(frozen=True)
class Remedy:
    """`sentence` may use the groups of the pattern as {0}, {1}, …"""

    sentence: str
    place: Place

    @property
    def field(self) -> str:
        """The field of the form for the next run, as an anchor; "" if it is not mended there."""
        return "" if self.place == "logs" else "#id_master_flavor" if self.place == "flavor" else f"#id_{self.place}"


@dataclass(frozen=True)
class Known:
    """A failure by the reason of its task, or by what its error says. The error is the last lines of the log."""

    remedy: Remedy
    pattern: re.Pattern[str] | None = None
    reasons: frozenset[str] = field(default_factory=frozenset)


def _said(pattern: str, sentence: str, place: Place) -> Known:
    return Known(Remedy(sentence, place), re.compile(pattern))


def _because(reasons: str, sentence: str, place: Place) -> Known:
    return Known(Remedy(sentence, place), reasons=frozenset(reasons.split()))


# The first that fits counts, so the more exact stand before the more general.
TABLE = (
    _because(
        "OOMKilled",
        "The memory of the task ran out (not that of its GPU). Take a flavor with more memory, or read the data in "
        "parts and with fewer loader processes.",
        "flavor",
    ),
    _because(
        "ImageNotPulled ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull ImageInspectError",
        "The image could not be fetched. Choose another one; an administrator can correct its name or save a pull "
        "secret for its registry.",
        "image",
    ),
    _because(
        "DeadlineExceeded TimeLimit",
        "The time limit ended it. Give the next run more time, and let the program go on from a checkpoint.",
        "time_limit",
    ),
    _said(
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|ResourceExhaustedError"
        r"|RESOURCE_EXHAUSTED.*(?:alloc|memory)|OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED",
        "The memory of the GPU is full. A smaller batch, mixed precision or gradient accumulation need less; a "
        "flavor with a larger GPU has more.",
        "flavor",
    ),
    _said(
        r"\bMemoryError\b|Unable to allocate [\d.]+ [KMGT]iB",
        "The memory of the task is too small for this array. Read the data in parts, or take a flavor with more "
        "memory.",
        "flavor",
    ),
    _said(
        r"Bus error|insufficient shared memory|unable to (?:open|allocate) shared memory"
        r"|DataLoader worker .* is killed",
        "A loader process ended, mostly for lack of memory. Fewer workers of the DataLoader, or a flavor with more "
        "memory, help.",
        "flavor",
    ),
    _said(
        r"ModuleNotFoundError: No module named '([^'.]+)",
        "The image has no {0}. Name it under Code → Requirements, or choose an image or environment that has it.",
        "requirements",
    ),
    _said(
        r"ImportError: cannot import name '([^']+)' from '([^']+)'",
        "This version of {1} has no {0}. Name the version that you need under Code → Requirements.",
        "requirements",
    ),
    _said(r"ImportError: (lib\S+\.so\S*)", "The image lacks the library {0}. Choose an image that has it.", "image"),
    _said(
        r"(?:FileNotFoundError|NotFoundError|No such file or directory).*?(/elearn/input[^'\"\s:;]*)",
        "The input has nothing at {0}. Compare with its files, and with the input folder of the cluster.",
        "input",
    ),
    _said(
        r"(?:FileNotFoundError|NotFoundError|No such file or directory).*?(/elearn/output[^'\"\s:;]*)",
        "Nothing has been written to {0}. Make the folder first; without an output datastore there is no "
        "/elearn/output at all.",
        "output",
    ),
    _said(
        r"FileNotFoundError: .*?'([^']+)'|can't open file '([^']+)'",
        "There is no {0}{1} where the program looks. A relative path begins where the command starts: at "
        "/elearn/code if the cluster has code.",
        "command",
    ),
    _said(
        r"(?:Read-only file system|Permission denied).*?(/elearn/(?:input|runs)\S*)",
        "The input is read-only. Write to /elearn/output, or to /tmp what the run alone needs.",
        "command",
    ),
    _said(
        r"No space left on device|Errno 28",
        "The disk of the task is full. Write large files to /elearn/output, and remove what is not needed any more.",
        "command",
    ),
    _said(
        r"(?i)watchdog caught collective operation timeout|nccl.*(?:timed? ?out|timeout)|collective.*timed out",
        "The tasks waited for one that was late or gone. Look at the log of the task that ended first; "
        "NCCL_DEBUG=INFO as a variable tells more.",
        "logs",
    ),
    _said(
        r"ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|NCCL error|DistBackendError",
        "The tasks lost their connection to each other. Look at the log of the task that ended first; "
        "NCCL_DEBUG=INFO as a variable tells more.",
        "logs",
    ),
    _said(
        r"Address already in use|EADDRINUSE",
        "Another program of the task listens at this port. Take the port from the environment (PORT, MASTER_PORT), "
        "or a free one.",
        "command",
    ),
    _said(
        r"device-side assert triggered",
        "Mostly a label or an index is out of range. CUDA_LAUNCH_BLOCKING=1 as a variable shows the line that did "
        "it.",
        "env",
    ),
    _said(
        r"no kernel image is available|CUDA driver version is insufficient|forward compatibility was attempted",
        "The image was built for other GPUs or drivers than these. Choose a newer image, or another model of GPU.",
        "image",
    ),
    _said(
        r"Torch not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device",
        "The task sees no GPU. Choose a flavor that has one, and an image with CUDA.",
        "flavor",
    ),
    _said(
        r"(?i)incompatible shapes|shapes? .{0,80}(?:incompatible|not compatible|mismatch|cannot be multiplied)"
        r"|size mismatch|must match the (?:existing )?size|dimensions? must be equal"
        r"|could not be broadcast|expected input.{0,60}to have \d+ channels",
        "The shapes do not fit: mostly the last batch is smaller, the data have another size than the model takes, "
        "or a checkpoint is of another model.",
        "command",
    ),
    _said(
        r"(?i)No API key configured|api_key not configured",
        "Set WANDB_MODE=offline: the portal shows what W&B writes offline. To send it to a server instead, set "
        "WANDB_API_KEY.",
        "env",
    ),
    _said(
        r"KeyError: '([A-Z][A-Z0-9_]+)'",
        "The variable {0} is not set. Add it to the environment variables.",
        "env",
    ),
    _said(
        r"GatedRepo|401 Client Error|403 Client Error|Invalid user token",
        "The other side wants credentials. Give the token as a variable of the environment.",
        "env",
    ),
    _said(
        r"Temporary failure in name resolution|Name or service not known|getaddrinfo failed"
        r"|Network is unreachable|Max retries exceeded",
        "The address could not be reached from the task. Take data by an input, packages by Requirements; an "
        "administrator decides which networks tasks reach.",
        "input",
    ),
    _said(
        r"(?m)^(?:bash|/bin/sh|sh): (?:line \d+: )?([^:\s]+): (?:command )?not found",
        "The image has no program {0}. Check the spelling, or choose an image that has it.",
        "command",
    ),
    _said(
        r"\b(?:SyntaxError|IndentationError|TabError)\b",
        "Python cannot read the program. Mend the line that the error names.",
        "command",
    ),
    _said(
        r"error: (?:unrecognized arguments: (.+)|the following arguments are required: .+)",
        "The command does not say what the program takes. Compare it with --help of the program.",
        "command",
    ),
)  # fmt: skip


def remedy(reason: str, exit_code: int | None, log_end: str) -> Remedy | None:
    """What usually mends the failure of a task, None if it is not known. `log_end`: the error, or the last lines of the log."""
    for known in TABLE:
        if reason in known.reasons:
            return known.remedy
        if known.pattern and (found := known.pattern.search(log_end)):
            words = [group or "" for group in found.groups()]
            return Remedy(known.remedy.sentence.format(*words), known.remedy.place)
    if exit_code == 127:
        return Remedy(
            "The image has no such program. Check the spelling of the command, or choose an image that has it.",
            "command",
        )
    return None
