"""Builds the images of docker/*/Dockerfile without a daemon or registry, into archives outside the source tree.

`python -m tests.kube.images [name …]` builds missing images and prints the paths of the archives. The first build takes
minutes. An archive is named by a hash of its Dockerfile, the files that it copies, and its base. buildah builds as root.
The base image of the Dockerfiles is Debian, created here with debootstrap. apt and pip use the package sources of this
machine: their configuration is mounted during the build, and no image contains it.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Image names as pods use them, without the registry that a container runtime would prepend.
TAGS = {
    "rclone": "gpu-cloud/rclone:1.75",
    "tensorflow": "gpu-cloud/tensorflow:2.21",
    "jupyter": "gpu-cloud/jupyter:4.6",
    "portal": "gpu-cloud/portal:dev",
}
SUITE = "bookworm"
BASE = f"docker.io/library/debian:{SUITE}-slim"
# Images whose sources change often and requirements rarely: keep up to this many layers as a build cache.
LAYERED, LAYERS = "portal", 60
# Archives kept per image, so that switching between two versions needs no build.
KEPT = 2

# Empty files in the base on which the machine's configuration is mounted.
PIP_CONF, APT_CONF, APT_SOURCES = "/etc/pip.conf", "/etc/apt/apt.conf.d/90host", "/etc/apt/sources.list"
AUTHORITIES = "/etc/ssl/host.pem"
# apt settings for reaching package sources. Others, such as hooks and cache paths, are not copied.
APT_SETTINGS = re.compile(r'^Acquire::(https?::|ftp::|Check-|Allow|Retries|ForceIPv|Queue-Mode)[^"]*"[^"]')
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Files that no container needs.
UNWANTED = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
APT_SLIM = """\
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
"""
# Files that do not belong in an image and change by themselves.
IGNORED = {"__pycache__", ".DS_Store"}


class BuildError(Exception):
    """An image cannot be built on this machine; the message says why."""


def image(name: str) -> Path:
    """Returns the archive of docker/`name` for `ctr images import` or another runtime; builds it if missing. Raises
    BuildError."""
    archive = _cache() / f"{name}-{key(name)}.tar"
    if not archive.exists():
        below = [image(base) for base in bases(name)]
        with _alone():
            if not archive.exists():
                _build(name, archive, below)
    archive.touch()  # the cleanup keeps the most recently used
    return archive


def key(name: str) -> str:
    """Returns a hash of everything that the image is made of, except the distribution's current packages."""
    dockerfile = ROOT / "docker" / name / "Dockerfile"
    below = "".join(map(key, bases(name)))
    digest = hashlib.sha256(f"{_recipe()} {TAGS[name]}{below}\n".encode() + dockerfile.read_bytes())
    for path in sorted(_files(dockerfile)):
        digest.update(f"{path.relative_to(ROOT)} {os.access(path, os.X_OK)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def bases(name: str) -> list[str]:
    """Returns our images that this one builds on."""
    text = (ROOT / "docker" / name / "Dockerfile").read_text()
    said = re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    return [each for each, tag in TAGS.items() if tag in said]


def copied(dockerfile: str) -> Iterator[str]:
    """Yields what a Dockerfile copies from the build context."""
    for line in dockerfile.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0].upper() in ("COPY", "ADD"):
            plain = [word for word in words[1:] if not word.startswith("--")]
            if not any(word.startswith("--from=") for word in words):
                yield from plain[:-1]


def _files(dockerfile: Path) -> Iterator[Path]:
    for source in copied(dockerfile.read_text()):
        path = ROOT / source
        if not path.exists():
            raise BuildError(f"{dockerfile.relative_to(ROOT)} copies {source}, which is not there.")
        for found in [path] if path.is_file() else path.rglob("*"):
            if found.is_file() and not IGNORED & set(found.parts) and found.suffix != ".pyc":
                yield found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-cloud-portal" / "images"


@contextmanager
def _alone() -> Iterator[None]:
    """Allows one build at a time: builds share the base, and two would slow each other down."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, archive: Path, below: Sequence[Path]) -> None:
    if os.geteuid() != 0:
        raise BuildError("Images are built as root.")
    began = time.monotonic()
    _buildah("rm", "--all")  # left over from failed builds
    if _buildah("images", "--quiet", "--all", "--filter=dangling=true").count("\n") > LAYERS:
        _buildah("rmi", "--prune", "--force")
    _base()
    _say(f"Building docker/{name} (once; minutes) …")
    pulled = [_buildah("pull", "--quiet", f"docker-archive:{base}").strip() for base in below]
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        tag = f"docker.io/{TAGS[name]}"
        over = [f"--build-arg=BASE=docker.io/{TAGS[base]}" for base in bases(name)]
        volumes = [f"--volume={path}:{target}:ro" for target, path in _configuration(Path(folder)).items()]
        _buildah(
            "bud", "--isolation=chroot", "--network=host", "--pull-never", "--format=docker", *volumes, *over,
            f"--layers={str(name == LAYERED).lower()}", f"--file=docker/{name}/Dockerfile", f"--tag={tag}", ".",
        )  # fmt: skip
        partly = archive.with_suffix(".new")
        partly.unlink(missing_ok=True)
        _buildah("push", "--quiet", tag, f"docker-archive:{partly}:{TAGS[name]}")
        unwanted = [*([tag] if name != LAYERED else []), *pulled]
        if unwanted:
            _buildah("rmi", *unwanted)
        partly.replace(archive)
    _tidy(name)
    _say(f"docker/{name}: {archive.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def _tidy(name: str) -> None:
    archives = sorted(_cache().glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[KEPT:]:
        old.unlink()


def _base() -> None:
    """Builds Debian as its official image: a minimal system without package lists, manuals and other languages."""
    made = f"localhost/debian:{_recipe()}"
    if subprocess.run([*_command("tag"), made, BASE], capture_output=True, check=False).returncode == 0:
        return
    _say(f"Making {BASE} (once) …")
    with tempfile.TemporaryDirectory(prefix="images-", dir=_cache()) as folder:
        root = Path(folder) / "root"
        mirror = next((uri for uri, release, _ in _apt_sources() if release == SUITE), "")
        _run(["debootstrap", "--variant=minbase", SUITE, str(root), *filter(None, [mirror])])
        (_cache() / "sources.list").write_text((root / APT_SOURCES.removeprefix("/")).read_text())
        _slim(root)
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, str(root), "/")
        _buildah("config", "--cmd=bash", f"--env=PATH={PATH}", container)
        _buildah("commit", "--quiet", "--rm", container, made)
        _buildah("tag", made, BASE)


def _slim(root: Path) -> None:
    for target in (PIP_CONF, APT_CONF, APT_SOURCES, AUTHORITIES, "/etc/hostname", "/etc/resolv.conf"):
        place = root / target.removeprefix("/")
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    # Future packages are unpacked without these files; those of the base are deleted.
    lean = [*(f"path-exclude {path}/*" for path in UNWANTED), "path-include /usr/share/doc/*/copyright"]
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text("\n".join(lean) + "\n")
    (root / "etc/apt/apt.conf.d/slim").write_text(APT_SLIM)
    for path in (*UNWANTED, "/var/cache/apt", "/var/lib/apt/lists", "/var/log"):
        _run(["find", f"{root}{path}", "-type", "f", "-not", "-name", "copyright", "-delete"])


def _recipe() -> str:
    """Returns a hash of everything that `_base` does."""
    said = repr((SUITE, UNWANTED, APT_SLIM, PIP_CONF, APT_CONF, APT_SOURCES, AUTHORITIES, PATH))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


# The machine's configuration


def _configuration(folder: Path) -> Mapping[str, Path]:
    """Returns path in the build → file to mount there: how this machine reaches its package sources."""
    found = {}
    settings = _pip_settings()
    authorities = _authorities(settings)
    for target, lines in (
        (PIP_CONF, ["[global]", *(f"{name} = {value}" for name, value in settings.items())]),
        (APT_CONF, _apt_settings()),
        (APT_SOURCES, [f"deb {uri} {release} {component}" for uri, release, component in _apt_sources()]),
    ):
        path = folder / Path(target).name
        # Mode 600, because the index URL may contain a password.
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        found[target] = path
    if not _apt_sources():
        found[APT_SOURCES] = _cache() / "sources.list"
    if authorities:
        found[AUTHORITIES] = authorities
    return found | {link: Path(link) for link in settings.get("find-links", "").split() if Path(link).is_dir()}


def _pip_settings() -> dict[str, str]:
    """Returns all settings of pip from files and environment, by their names in a file."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    settings: dict[str, str] = {}
    for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, value = line.partition("=")
        # pip lists the environment (":env:.index-url") first, so the first value wins.
        settings.setdefault(name.rpartition(".")[2], ast.literal_eval(value))
    if "cert" in settings:
        settings["cert"] = AUTHORITIES
    return settings


def _authorities(pip: Mapping[str, str]) -> Path | None:
    """Returns the certificate authorities that this machine trusts; an image may have fewer."""
    candidates = [os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile]
    return next(
        (Path(path) for path in [*candidates, "/etc/ssl/certs/ca-certificates.crt"] if path and Path(path).exists()),
        None,
    )


def _apt_settings() -> list[str]:
    lines = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout.splitlines()
    authorities = [f'Acquire::https::CAInfo "{AUTHORITIES}";']
    return [line for line in lines if APT_SETTINGS.match(line) and "CAInfo" not in line] + authorities


def _apt_sources() -> list[tuple[str, str, str]]:
    """Returns (URL, release, component) of the same Debian release if this machine runs it, else debootstrap's default."""
    form = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
    argv = ["apt-get", "indextargets", "Created-By: Packages", "--format", form]
    lines = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    found = [(uri, release, component) for uri, release, component in (line.split("\t") for line in lines)]
    return sorted({source for source in found if source[1].split("-")[0] == SUITE and source[2] == "main"})


# Programs


def _command(verb: str) -> list[str]:
    """Returns a buildah command with its own storage, separate from other containers on this machine."""
    return ["buildah", "--root", str(_cache() / "storage"), "--runroot", "/run/gpu-cloud-images", verb]


def _buildah(verb: str, *arguments: str) -> str:
    return _run([*_command(verb), *arguments])


def _run(argv: Sequence[str]) -> str:
    """Returns stdout."""
    try:
        done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(
            f"{error.filename} is missing; install it with: apt-get install buildah debootstrap"
        ) from error
    if done.returncode:
        log = _cache() / "failed.log"
        log.write_text(f"{shlex.join(argv)}\n{done.stdout}\n{done.stderr}")
        raise BuildError(f"{argv[0]} failed (all of it is in {log}):\n{done.stderr[-3000:]}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in TAGS]:
        _say(f"There is no docker/{unknown[0]}; there are: {', '.join(TAGS)}.")
        return 2
    try:
        for name in names or TAGS:
            print(image(name), flush=True)
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
