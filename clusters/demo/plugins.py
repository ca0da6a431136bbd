"""The plugins of a demonstration, with resolved locks, so that creating them needs no package index.

Pure Python wheels that need only JupyterLab. An administrator updates them by saving them.
"""

from __future__ import annotations

from clusters.catalog.models import Image
from clusters.environments.plugin import PluginManifest
from clusters.environments.plugins import offered
from portal.models import User

PLUGINS = (
    (
        "archive",
        "Archive",
        "Downloads whole folders and unpacks archives, in the file browser.",
        "jupyter-archive",
        "3.5.1",
        (
            "ca6e5eefbc562fe0c7709f1da3027c66cccc0eac35b5d31efe337abc637bd859",
            "f232dda22f322d0ac4785fb04bfdf7c914434509d045eec8836acd8b868bc23a",
        ),
    ),
    (
        "chinese",
        "Chinese",
        "JupyterLab in simplified Chinese (简体中文); choose it under Settings → Language.",
        "jupyterlab-language-pack-zh-cn",
        "4.5.post3",
        (
            "1fe0070c44c49c2ea15e4cd129a46c8359169a8ad04677891a64f3af73a63756",
            "47cdb0c41c6b066e795c867786c9c29fde527e2bf15aa6b3e9b2bab9929304b5",
        ),
    ),
    (
        "execute-time",
        "Execution times",
        "Shows below each cell when it ran and how long it took.",
        "jupyterlab-execute-time",
        "3.3.0",
        (
            "900fd1aebbfd3d943d3625eef973eed555bb2745d49840402783959c8a1dfc3a",
            "ed246db4d25c2fdbf2825206203d9d12251ebb38d46eb17ce0e11d271b2738f7",
        ),
    ),
)


def offer(image: Image, by: User) -> None:
    for name, title, description, package, version, hashes in PLUGINS:
        manifest = PluginManifest.model_validate(
            {
                "metadata": {"name": name, "image": image.name},
                "spec": {"title": title, "description": description, "requirements": [package]},
            }
        )
        lock = f"{package}=={version} {' '.join(f'--hash=sha256:{each}' for each in hashes)}\n"
        offered(manifest, image, lock, acting_user=by, new=True)
