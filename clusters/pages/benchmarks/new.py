"""The form of a new benchmark, filled with what is usual or with what an earlier one measured."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.benchmarks import actions
from clusters.benchmarks.access import benchmark_for
from clusters.benchmarks.manifest import MAX_NAME, BenchmarkManifest, BenchmarkSpec
from clusters.models import Benchmark
from clusters.pages.choices import Offer
from clusters.pages.raw_text import Ticks, Words
from datastores.models import Datastore
from portal.access import OPERATE, appcodes_for, require_somewhere
from portal.errors import Invalid
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import selected_appcode, words

FIELDS = {
    "metadata.name": "name", "metadata.appcode": "appcode", "spec.image": "image", "spec.flavor": "flavor",
    "spec.serverFlavor": "server_flavor", "spec.strategies": "strategies", "spec.data": "kinds", "spec.counts": "counts",
    "spec.parameterServers": "parameter_servers", "spec.steps": "steps", "spec.batch": "batch", "spec.width": "width",
}  # fmt: skip
STRATEGIES = (("all-reduce", "All-reduce"), ("parameter-server", "Parameter servers"))
DATA = (("synthetic", "Synthetic: the same batch again"), ("digits", "Digits: through a pipeline"))
NUMBERS = ("parameter_servers", "steps", "batch", "width")


def _number(label: str, hint: str = "") -> Words:
    return Words(
        label=label, help_text=hint, widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"})
    )


class BenchmarkForm(forms.Form):
    """`counts` are divided by commas or spaces."""

    use_required_attribute = False

    name = Words(
        label="Name",
        widget=forms.TextInput(attrs={"maxlength": MAX_NAME, "autocomplete": "off", "autocapitalize": "none"}),
    )
    appcode = Words(label="Appcode", widget=forms.Select())
    image = Words(label="Image", widget=forms.Select())
    flavor = Words(label="Flavor of tasks that compute", widget=forms.Select())
    server_flavor = Words(label="Flavor of parameter servers and their master", widget=forms.Select())
    strategies = Words(label="Strategies", widget=Ticks(choices=STRATEGIES))
    kinds = Words(label="Data", widget=Ticks(choices=DATA))
    counts = Words(
        label="Tasks that compute",
        help_text="Rising; the first is what the others are compared with.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": "1, 2, 4"}),
    )
    parameter_servers = _number("Parameter servers")
    steps = _number("Steps", "Measured, of each task.")
    batch = _number("Batch", "Examples of one step of one task or GPU.")
    width = _number("Width", "Units of both hidden layers; 1024 make 1.1 million weights.")

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        usual = BenchmarkSpec(image="x", flavor="x")
        chosen = offer.defaults()
        self.initial = {
            "name": "benchmark", "appcode": offer.appcode, "image": chosen["image"],
            "flavor": chosen.get("master_flavor", ""), **_typed(usual), **self.initial,
        }  # fmt: skip
        flavors = offer.choices()["master_flavor"]
        same = [("", "the same"), *flavors]
        for name, choices in {**offer.choices(), "flavor": flavors, "server_flavor": same}.items():
            if name in ("appcode", "image", "flavor", "server_flavor"):
                widget = self.fields[name].widget
                assert isinstance(widget, forms.Select)
                widget.choices = choices

    def manifest(self) -> BenchmarkManifest:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        said = self.cleaned_data
        spec = {name: said[name].strip() for name in ("image", "flavor", *NUMBERS)}
        spec |= {"strategies": said["strategies"].split(), "data": said["kinds"].split()}
        spec |= {"counts": re.split(r"[\s,]+", said["counts"].strip()), "server_flavor": said["server_flavor"] or None}
        metadata = {"name": said["name"].strip(), "appcode": said["appcode"]}
        return parse(BenchmarkManifest, {"metadata": metadata, "spec": spec})


def _typed(spec: BenchmarkSpec) -> dict[str, Any]:
    """What stands in the fields of a spec, but for what is chosen of the catalogue."""
    return {
        "strategies": " ".join(spec.strategies),
        "kinds": " ".join(spec.data),
        "counts": ", ".join(map(str, spec.counts)),
        **{name: str(getattr(spec, name)) for name in NUMBERS},
    }


@require_http_methods(["GET", "HEAD", "POST"])
def new_benchmark(request: HttpRequest) -> HttpResponse:
    """`?again=APPCODE/NAME` fills it with what that one measured."""
    user = person(request)
    require_somewhere(user, OPERATE)
    again = _again(request)
    code = request.POST.get("appcode") or (again and again.appcode.code) or selected_appcode(request)
    offer = Offer.make(appcodes_for(user, OPERATE), code[:63], Datastore.objects.none())
    if request.method != "POST":
        return render(request, "clusters/new_benchmark.html", {"form": BenchmarkForm(offer, initial=_filled(again))})
    form = BenchmarkForm(offer, request.POST)
    try:
        made = actions.create_benchmark(form.manifest(), acting_user=user)
    except Invalid as invalid:
        show_errors(form, invalid, FIELDS)
        return render(request, "clusters/new_benchmark.html", {"form": form})
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
    spec = BenchmarkSpec.model_validate(again.spec)
    chosen = {"image": spec.image, "flavor": spec.flavor, "server_flavor": spec.server_flavor or ""}
    return {**_typed(spec), **chosen, "name": _next_name(again), "appcode": again.appcode.code}


def _next_name(again: Benchmark) -> str:
    """night → night-2 → night-3: the first that is free."""
    stem = re.sub(r"-\d{1,3}\Z", "", again.name)[: MAX_NAME - 4]
    taken = set(Benchmark.objects.filter(appcode=again.appcode, name__startswith=stem).values_list("name", flat=True))
    return next(name for n in range(2, len(taken) + 3) if (name := f"{stem}-{n}") not in taken)
