"""The form of a new benchmark, filled with defaults or from an earlier benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.benchmarks import actions
from clusters.benchmarks.access import benchmark_for
from clusters.benchmarks.manifest import MAX_NAME, BenchmarkManifest, BenchmarkSpec
from clusters.benchmarks.models import Benchmark
from clusters.cluster.form.choices import Offer
from clusters.frame.form import ManifestForm, choice, number
from clusters.frame.raw_text import Ticks, Words
from datastores.models import Datastore
from portal.access import OPERATE, appcodes_for, require_somewhere
from portal.errors import FieldError
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

FIELDS = {
    "metadata.name": "name", "metadata.appcode": "appcode", "spec.image": "image", "spec.flavor": "flavor",
    "spec.serverFlavor": "server_flavor", "spec.strategies": "strategies", "spec.data": "kinds", "spec.counts": "counts",
    "spec.parameterServers": "parameter_servers", "spec.steps": "steps", "spec.batch": "batch", "spec.width": "width",
}  # fmt: skip
STRATEGIES = (("all-reduce", "All-reduce"), ("parameter-server", "Parameter servers"))
DATA = (("synthetic", "Synthetic: the same batch again"), ("digits", "Digits: through a pipeline"))
NUMBERS = ("parameter_servers", "steps", "batch", "width")


class BenchmarkForm(ManifestForm[BenchmarkManifest]):
    """`counts` are separated by commas or spaces."""

    manifest_class = BenchmarkManifest
    paths = FIELDS

    name = Words(
        label="Name",
        widget=forms.TextInput(attrs={"maxlength": MAX_NAME, "autocomplete": "off", "autocapitalize": "none"}),
    )
    appcode = choice("Appcode")
    image = choice("Image")
    flavor = choice("Flavor of tasks that compute")
    server_flavor = choice("Flavor of parameter servers and their master")
    strategies = Words(label="Strategies", widget=Ticks(choices=STRATEGIES))
    kinds = Words(label="Data", widget=Ticks(choices=DATA))
    counts = Words(
        label="Tasks that compute",
        help_text="Rising; the first is what the others are compared with.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": "1, 2, 4"}),
    )
    parameter_servers = number("Parameter servers")
    steps = number("Steps", "Measured, of each task.")
    batch = number("Batch", "Examples of one step of one task or GPU.")
    width = number("Width", "Units of both hidden layers; 1024 make 1.1 million weights.")

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        usual = BenchmarkSpec(image="x", flavor="x")
        chosen = offer.defaults()
        self.initial = {
            "name": "benchmark", "appcode": offer.appcode, "image": chosen["image"],
            "flavor": chosen.get("master_flavor", ""), **_typed(usual), **self.initial,
        }  # fmt: skip
        choices = offer.choices()
        for name in ("appcode", "image"):
            self.offer_kept(name, choices[name])
        self.close("image", offer.images_elsewhere)
        self.offer_kept("flavor", choices["master_flavor"])
        self.offer_kept("server_flavor", [("", "the same"), *choices["master_flavor"]])

    def document(self, said: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        spec: dict[str, Any] = {name: said[name].strip() for name in ("image", "flavor", *NUMBERS)}
        spec |= {"strategies": said["strategies"].split(), "data": said["kinds"].split()}
        spec |= {"counts": re.split(r"[\s,]+", said["counts"].strip()), "server_flavor": said["server_flavor"] or None}
        metadata = {"name": said["name"].strip(), "appcode": said["appcode"]}
        return {"metadata": metadata, "spec": spec}, []


def _typed(spec: BenchmarkSpec) -> dict[str, str]:
    """Field values of a spec, except those chosen from the catalogue."""
    return {
        "strategies": " ".join(spec.strategies),
        "kinds": " ".join(spec.data),
        "counts": ", ".join(map(str, spec.counts)),
        **{name: str(getattr(spec, name)) for name in NUMBERS},
    }


@require_http_methods(["GET", "HEAD", "POST"])
def new_benchmark(request: HttpRequest) -> HttpResponse:
    """`?again=APPCODE/NAME` fills it from an earlier benchmark."""
    user = person(request)
    require_somewhere(user, OPERATE)
    again = _again(request)
    code = request.POST.get("appcode") or (again and again.appcode.code) or selected_appcode(request)
    offer = Offer.make(appcodes_for(user, OPERATE), code[:63], Datastore.objects.none())
    sent = request.POST if request.method == "POST" else None
    form = BenchmarkForm(offer, sent, initial=_filled(again) if sent is None else {})
    made = form.attempt(lambda manifest: actions.create_benchmark(manifest, acting_user=user), show_denied=False)
    if made is None:
        return render(request, "clusters/benchmarks/new.html", {"form": form})
    messages.success(
        request, f"{made.name} has been submitted: {len(made.spec['counts'])} sizes, one measurement after another."
    )
    return redirect("benchmark", made.appcode.code, made.name)


def _again(request: HttpRequest) -> Benchmark | None:
    code, _, name = words(request, "again").partition("/")
    try:
        return benchmark_for(person(request), code, name) if name else None
    except Http404:
        return None


def _filled(again: Benchmark | None) -> dict[str, Any]:
    if again is None:
        return {}
    spec = BenchmarkSpec.stored(again.spec)
    return fields_of(_next_name(again), again.appcode.code, spec)


def fields_of(name: str, appcode: str, spec: BenchmarkSpec) -> dict[str, str]:
    chosen = {"image": spec.image, "flavor": spec.flavor, "server_flavor": spec.server_flavor or ""}
    return {**_typed(spec), **chosen, "name": name, "appcode": appcode}


def _next_name(again: Benchmark) -> str:
    """night → night-2 → night-3: the first free name."""
    stem = re.sub(r"-\d{1,3}\Z", "", again.name)[: MAX_NAME - 4]
    taken = set(Benchmark.objects.filter(appcode=again.appcode, name__startswith=stem).values_list("name", flat=True))
    return next(name for n in range(2, len(taken) + 3) if (name := f"{stem}-{n}") not in taken)
