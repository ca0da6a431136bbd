"""Browser code from npm packages, pinned by hash and installed beside the Python packages.

`python -m portal.assets` fetches it; `make run` and docker/portal/Dockerfile call that once. It uses the registry that
npm is configured for, or NPM_CONFIG_REGISTRY. Without these files charts are still pictures, and terminals and previews
of Parquet files do not work, which their pages say.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import certifi

FOLDER = Path(sys.prefix) / "share" / "gpu-cloud" / "static"
SECONDS = 30
# The system's certificates may include more authorities, for example of a TLS-intercepting proxy.
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
# Source maps help only those who change xterm.js, and collectstatic would look for them.
SOURCE_MAP = re.compile(rb"\n//# sourceMappingURL=.*\s*\Z")


@dataclass(frozen=True)
class Package:
    """`sha512` as npm writes it, in base64; `files` maps paths in the archive to paths below FOLDER."""

    name: str
    version: str
    sha512: str
    files: Mapping[str, str]

    @property
    def path(self) -> str:
        return f"{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"


_HYPARQUET = (
    "assemble", "bloom", "column", "constants", "convert", "datapage", "delta", "encoding", "filter", "geoparquet", "index",
    "indexes", "metadata", "plain", "plan", "query", "read", "rowgroup", "scan", "schema", "snappy", "thrift", "utils", "variant",
    "wkb", "xxhash",
)  # fmt: skip
_COMPRESSORS = (
    "brotli", "brotli.bitreader", "brotli.blocks", "brotli.context", "brotli.contextmap", "brotli.dictionary", "brotli.huffman",
    "brotli.prefix", "brotli.streams", "brotli.transform", "gzip", "gzip.huffman", "lz4",
)  # fmt: skip

# All are under the MIT licence.
PACKAGES = (
    Package(
        "@xterm/xterm", "6.0.0",
        "TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zgc5kq5omJ+V0a8/kIM2WD3sMOYg==",
        {"lib/xterm.js": "xterm/xterm.js", "css/xterm.css": "xterm/xterm.css", "LICENSE": "xterm/LICENSE"},
    ),
    Package(
        "@xterm/addon-fit", "0.11.0",
        "jYcgT6xtVYhnhgxh3QgYDnnNMYTcf8ElbxxFzX0IZo+vabQqSPAjC3c1wJrKB5E19VwQei89QCiZZP86DCPF7g==",
        {"lib/addon-fit.js": "xterm/addon-fit.js"},
    ),
    # Charts: 22 KB compressed, and a chart of 1,000 points is drawn in a few milliseconds. Others are 5 to 20 times as large.
    Package(
        "uplot", "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot/uplot.js", "dist/uPlot.min.css": "uplot/uplot.css", "LICENSE": "uplot/LICENSE"},
    ),
    # Parses Parquet in the browser's sandbox, where a hostile file does least harm; no C++ parser in a web process.
    Package(
        "hyparquet", "1.31.5",
        "KPVfaxW8xOiO2/4fjeiBfFNEXhGVw9tfcb9ha2iNZdJ3J/yBjEwIeAnTyyuhllFFTb9YO9wg0DfRAOnm6KCvBg==",
        {f"src/{name}.js": f"parquet/hyparquet/{name}.js" for name in _HYPARQUET} | {"LICENSE": "parquet/hyparquet/LICENSE"},
    ),
    Package(
        "hyparquet-compressors", "1.1.2",
        "0Hx6w0ZpVpNCefKy5xBYLTp6rKeZn/tsUzuliNzfKqSCdLcTQSfwATEoeedS703Y17k1qNS61HwRME5aOeNkPg==",
        {f"src/{name}.js": f"parquet/compressors/{name}.js" for name in _COMPRESSORS}
        | {"LICENSE": "parquet/compressors/LICENSE"},
    ),
    Package(
        "fzstd", "0.1.1",
        "dkuVSOKKwh3eas5VkJy1AW1vFpet8TA/fGmVA5krThl8YcOVE/8ZIoEA1+U1vEn5ckxxhLirSdY837azmbaNHA==",
        {"esm/index.mjs": "parquet/fzstd.js", "LICENSE": "parquet/fzstd.LICENSE"},
    ),
)  # fmt: skip


def has_xterm() -> bool:
    return _has("xterm")


def has_uplot() -> bool:
    return _has("uplot")


def has_parquet() -> bool:
    return _has("parquet")


def _has(folder: str) -> bool:
    places = (place for package in PACKAGES for place in package.files.values())
    return all((FOLDER / place).exists() for place in places if place.startswith(f"{folder}/"))


def unpack(package: Package, archive: bytes) -> dict[str, bytes]:
    """The files by their paths below FOLDER. Raises ValueError if the archive has another hash."""
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != package.sha512:
        raise ValueError(f"what came as {package.path} is something else")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for name, place in package.files.items():
            file = tar.extractfile(f"package/{name}")
            assert file is not None
            found[place] = SOURCE_MAP.sub(b"\n", file.read())
    return found


def fetch(registry: str) -> None:
    """Fetches all packages again. Raises OSError, HTTPException or ValueError, and then has written nothing."""
    context = ssl.create_default_context(cafile=certifi.where())
    if AUTHORITIES.exists():
        context.load_verify_locations(AUTHORITIES)
    found = dict[str, bytes]()
    for package in PACKAGES:
        url = f"{registry.rstrip('/')}/{package.path}"
        # The hash of the download is verified.
        with urllib.request.urlopen(url, timeout=SECONDS, context=context) as answer:  # noqa: S310
            found |= unpack(package, answer.read())
    for place, data in found.items():
        path = FOLDER / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.new").write_bytes(data)
        path.with_name(f"{path.name}.new").rename(path)


def registry() -> str:
    """The address of the npm registry, "" if none is configured."""
    if named := os.environ.get("NPM_CONFIG_REGISTRY"):
        return named
    npm = shutil.which("npm")
    if npm is None:
        return ""
    asked = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


if __name__ == "__main__":
    source = registry()
    try:
        if not source:
            raise OSError("this machine has no npm, and NPM_CONFIG_REGISTRY names no registry")
        fetch(source)
    except (OSError, HTTPException, ValueError) as error:
        sys.exit(
            "xterm.js, hyparquet and uPlot could not be fetched, so terminals and previews of Parquet do not work yet, "
            f"and charts are pictures: {error}"
        )
