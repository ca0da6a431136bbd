"""The choices of the New Cluster form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from clusters.catalog.models import Flavor, Image
from clusters.clouds.placement import Place, place_of
from clusters.clouds.registry import why_no_environments
from clusters.environments.models import Environment, Plugin
from clusters.environments.plugins import plugins
from clusters.frameworks import COMPUTING, COMPUTING_COMPLETIONS, COMPUTING_ROLES
from clusters.frameworks.jupyter import Jupyter
from clusters.hooks.models import Hook
from clusters.manifest.input import FROM
from clusters.runs.models import Cluster
from datastores.access import readable_by
from datastores.models import Datastore
from portal.errors import Invalid
from portal.models import Appcode

# When a hook runs.
WHEN = (
    ("before", "Before the run, which waits for it"),
    ("success", "After a success"),
    ("failure", "After a failure"),
    ("always", "After the run, in any case"),
)
# Only the newest are offered; a manifest can name any.
MAX_SOURCES = 100


@dataclass(frozen=True)
class Offer:
    """The choices of the form. `appcode` owns the offered datastores. Its runs are placed at `place`, None if they cannot be."""

    appcodes: list[Appcode]
    appcode: str
    images: list[Image]
    flavors: list[Flavor]
    datastores: list[Datastore]
    # Readable datastores of other appcodes.
    shared: Sequence[Datastore] = ()
    place: Place | None = None
    environments: Sequence[Environment] = ()
    # Clusters that write output and end, whose output others can read.
    sources: Sequence[str] = ()
    plugins: Sequence[Plugin] = ()
    # Name and description of the appcode's hooks.
    hooks: Sequence[tuple[str, str]] = ()

    @classmethod
    def make(cls, appcodes: QuerySet[Appcode], appcode: str, datastores: QuerySet[Datastore]) -> Offer:
        """`appcodes`: where the user may create clusters. `datastores`: the visible ones."""
        codes = list(appcodes.filter(state=Appcode.State.ACTIVE))
        known = [each.code for each in codes]
        chosen = appcode if appcode in known else (known[0] if known else "")
        try:
            place = place_of(codes[known.index(chosen)]) if chosen else None
        except Invalid:
            # The preview shows the error.
            place = None
        makes = place is not None and not why_no_environments(place.cloud)
        return cls(
            codes,
            chosen,
            list(Image.objects.filter(enabled=True)),
            list(Flavor.objects.filter(enabled=True)),
            list(datastores.filter(appcode__code=chosen)),
            _shared_with(codes[known.index(chosen)]) if chosen else (),
            place,
            list(
                Environment.objects.filter(appcode__code=chosen, deleted_at=None)
                .only("name", "version", "image")
                .order_by("name", "-version")
            )
            if makes
            else [],
            list(
                Cluster.objects.filter(appcode__code=chosen, deleted_at=None, part_of="", spec__mode="batch")
                .exclude(Q(spec__output=None) | Q(current_run=None))
                .order_by("-pk")
                .values_list("name", flat=True)[:MAX_SOURCES]
            ),
            list(plugins().defer("lock")) if makes else [],
            list(Hook.objects.filter(appcode__code=chosen).order_by("name").values_list("name", "description")),
        )

    def runs(self, image: Image) -> bool:
        return self.place is None or image.has(self.place.driver.software)

    @property
    def images_elsewhere(self) -> set[str]:
        """The images that do not run where this appcode's runs are placed."""
        return {image.name for image in self.images if not self.runs(image)}

    def image_with(self, framework: str) -> str:
        """The first runnable image that is known to have this framework; "" for none."""
        return next((each.name for each in self.images if self.runs(each) and framework in each.frameworks), "")

    def frameworks(self) -> dict[str, list[str]]:
        """The frameworks on the form by image, for images where they are known. Includes those that run on any image."""
        anywhere = [name for name, driver in COMPUTING.items() if not driver.is_installed]
        found = {each.name: [name for name in each.frameworks if name in COMPUTING] for each in self.images}
        return {name: [*names, *anywhere] for name, names in found.items() if names}

    def defaults(self) -> dict[str, str]:
        """What an empty form starts with, the same on every visit: an image that can run here, and the smallest flavor with a
        GPU if the quota has room for it, else the smallest."""
        # Images without a notebook server first: they are meant for computing.
        fitting = sorted(filter(self.runs, self.images), key=lambda image: Jupyter.name in image.frameworks)
        image = fitting[0].name if fitting else ""
        quota = next((each.gpu_limit for each in self.appcodes if each.code == self.appcode), 0)
        with_gpu = (flavor for flavor in self.flavors if 0 < flavor.gpus <= quota)
        flavor = next(with_gpu, next(iter(self.flavors), None))
        roles = {name: flavor.name if flavor else "" for name, role in COMPUTING_ROLES.items() if role.is_usual}
        # A framework that the image lacks would be refused.
        framework = next(iter(COMPUTING))
        if (has := self.frameworks().get(image)) and framework not in has:
            framework = has[0]
        chosen = {"appcode": self.appcode, "image": image, "framework": framework}
        return chosen | {f"{name}_flavor": each for name, each in roles.items()}

    def choices(self) -> dict[str, list[tuple[str, str]]]:
        flavors = [(flavor.name, flavor_label(flavor)) for flavor in self.flavors]
        stores = [
            ("", "none"),
            *((store.name, f"{store.name} ({store.get_kind_display()})") for store in self.datastores),
        ]
        homes = {store.name for store in self.datastores if store.kind != Datastore.Kind.S3}
        images = [
            (
                image.name,
                image.title if self.runs(image) else f"{image.title} (not on {self.place and self.place.title})",
            )
            for image in self.images
        ]
        return {
            "appcode": [
                (each.code, each.code if each.name == each.code else f"{each.code} – {each.name}")
                for each in self.appcodes
            ],
            "image": images,
            "environment": self._environments(),
            "input": [
                *stores,
                *((str(store), f"{store} ({store.get_kind_display()}, shared)") for store in self.shared),
                *((f"{FROM}{name}", f"Output of {name}") for name in self.sources),
            ],
            "input_mode": [
                ("auto", "Copied; a version once for all runs"),
                ("copy", "Copied for each run"),
                ("cache", "Copied once for all runs"),
                ("stream", "By the program itself (S3)"),
                ("shard", "Each task its part of the files"),
            ],
            "output": stores,
            "hook_copy_to": [("", "Choose"), *stores[1:]],
            "home": [(name, label) for name, label in stores if name in {"", *homes}],
            **{
                f"{name}_flavor": flavors
                if role.least
                else [*flavors, ("", "none")]
                if role.leads
                else [("", "none"), *flavors]
                for name, role in COMPUTING_ROLES.items()
            },
            "hook_on": list(WHEN),
            "framework": [(name, driver.title) for name, driver in COMPUTING.items()],
            "mode": [("batch", "Batch"), ("service", "Service")],
            "completion": [(name, each.title) for name, each in COMPUTING_COMPLETIONS.items()],
        }

    def _environments(self) -> list[tuple[str, str]]:
        """The newest version of each name, resolved at deployment, and each version by itself."""
        newest = {each.name: each for each in reversed(self.environments)}
        return [
            ("", "None: the plain image"),
            *((name, f"{name} (newest: {each.version}, over {each.image})") for name, each in newest.items()),
            *((str(each), f"{each} over {each.image}") for each in self.environments),
        ]


def _shared_with(appcode: Appcode) -> Sequence[Datastore]:
    shared = readable_by(appcode).exclude(appcode=appcode).order_by("appcode__code", "name")
    return list(shared[:MAX_SOURCES])


def flavor_label(flavor: Flavor) -> str:
    """For example "Middle + 1 GPU · 4 cores, 16 GiB"."""
    cores = f"{flavor.cpu_milli / 1000:g}"
    return f"{flavor.title} · {cores} {'core' if cores == '1' else 'cores'}, {flavor.memory_mb / 1024:.4g} GiB"
