"""Administrators' pages of flavors (with the nodes that they must fit) and images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from clusters.admission.demand import DEMANDS, GPU, is_gpu, short
from clusters.catalog.actions import Offer, save_offer
from clusters.catalog.demands import lines, pairs, taint_lines, taints
from clusters.catalog.models import Flavor, Image
from clusters.clouds.health import silence
from clusters.clouds.models import CloudState
from clusters.clouds.placement import titles
from clusters.frameworks import INSTALLED
from portal.access import require_administrator
from portal.errors import Invalid
from portal.pages.appcodes import person
from portal.pages.forms import prose, show_errors

MAX_NODES = 200
T = TypeVar("T")


class FlavorForm(forms.Form):
    use_required_attribute = False
    title = forms.CharField(max_length=60, help_text="As people say it: “Middle + 1 GPU”.")
    name = forms.CharField(
        max_length=63, help_text="What manifests say, e.g. middle-1-gpu. It cannot be changed later."
    )
    cores = forms.DecimalField(
        min_value=0, max_digits=8, decimal_places=3, help_text="Cores of the processor, e.g. 4 or 0.5."
    )
    memory_gib = forms.DecimalField(label="Memory (GiB)", min_value=0, max_digits=10, decimal_places=3)
    gpus = forms.IntegerField(label="GPUs", min_value=0, max_value=64, initial=0)
    gpu_model = forms.CharField(
        label="GPU model",
        max_length=60,
        required=False,
        help_text="Empty for any model. With another resource than nvidia.com/gpu, a name with a price, e.g. H100 1g.10gb or "
        "MI300X.",
    )
    resource = forms.CharField(
        label="GPU resource",
        max_length=317,
        initial=GPU,
        required=False,
        help_text="What Kubernetes calls these GPUs, e.g. amd.com/gpu, or slices, e.g. nvidia.com/mig-1g.10gb. Slices have a "
        "price by their model and count 0 against GPU quotas.",
    )
    node_labels = prose(
        "Node labels",
        required=False,
        rows=2,
        hint="Its tasks go only to nodes with all of these, e.g. pool=a100. One a line.",
    )
    tolerations = prose(
        "Tolerated taints", required=False, rows=2, hint="As kubectl writes them, e.g. team=ml:NoSchedule. One a line."
    )
    extra = prose(
        "Further resources",
        required=False,
        rows=2,
        hint="Of one task, e.g. rdma/hca=1 or hugepages-2Mi=1Gi. One a line.",
    )
    enabled = forms.BooleanField(label="Offered in forms", required=False, initial=True)

    def clean_resource(self) -> str:
        return self.cleaned_data["resource"] or GPU

    def clean_node_labels(self) -> dict[str, str]:
        return _read(pairs, self.cleaned_data["node_labels"])

    def clean_extra(self) -> dict[str, str]:
        return _read(pairs, self.cleaned_data["extra"])

    def clean_tolerations(self) -> list[dict[str, str]]:
        return _read(taints, self.cleaned_data["tolerations"])

    def write(self, flavor: Flavor) -> Flavor:
        values = self.cleaned_data
        for name in ("resource", *DEMANDS):
            setattr(flavor, name, values[name])
        flavor.title, flavor.gpus, flavor.gpu_model, flavor.enabled = (
            values["title"], values["gpus"], values["gpu_model"], values["enabled"],
        )  # fmt: skip
        flavor.cpu_milli, flavor.memory_mb = int(values["cores"] * 1000), int(values["memory_gib"] * 1024)
        flavor.name = flavor.name or values["name"]
        return flavor

    @staticmethod
    def filled(flavor: Flavor) -> dict[str, Any]:
        facts = {name: getattr(flavor, name) for name in ("title", "name", "gpus", "gpu_model", "resource", "enabled")}
        facts |= {name: lines(getattr(flavor, name)) for name in ("node_labels", "extra")}
        facts["tolerations"] = taint_lines(flavor.tolerations)
        return facts | {"cores": f"{flavor.cpu_milli / 1000:g}", "memory_gib": f"{flavor.memory_mb / 1024:g}"}


def _read(reader: Callable[[str], T], text: str) -> T:
    try:
        return reader(text)
    except ValueError as error:
        raise forms.ValidationError(str(error)) from error


class ImageForm(forms.Form):
    use_required_attribute = False
    title = forms.CharField(max_length=100)
    name = forms.CharField(max_length=63, help_text="What manifests say, e.g. tensorflow. It cannot be changed later.")
    description = prose("Description", required=False, rows=3)
    container = forms.CharField(
        max_length=300,
        required=False,
        help_text="The container's reference, for Kubernetes, e.g. registry.example.com/tensorflow:2.21.",
    )
    environment = forms.CharField(
        max_length=500,
        required=False,
        help_text="The path of a virtual environment on this machine. Empty: it cannot run here.",
    )
    program = forms.CharField(
        label="Program folder",
        max_length=500,
        required=False,
        help_text="A folder of this machine that tasks see at /elearn/program and start in.",
    )
    frameworks = forms.MultipleChoiceField(
        required=False,
        choices=[(name, driver.title) for name, driver in INSTALLED.items()],
        widget=forms.CheckboxSelectMultiple,
        help_text="What is installed in it: others are refused. With none ticked, nobody is told before the run.",
    )
    enabled = forms.BooleanField(label="Offered in forms", required=False, initial=True)

    def write(self, image: Image) -> Image:
        for name in ("title", "description", "container", "environment", "program", "frameworks", "enabled"):
            setattr(image, name, self.cleaned_data[name])
        image.name = image.name or self.cleaned_data["name"]
        return image

    @staticmethod
    def filled(image: Image) -> dict[str, Any]:
        return {name: getattr(image, name) for name in ImageForm.base_fields}


@dataclass(frozen=True)
class CloudNodes:
    """The nodes of one cloud, as last seen. Of many nodes the busiest are shown."""

    state: CloudState
    title: str
    silence: str

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return sorted(self._every, key=lambda node: (node["gpus_free"] - node["gpus"], node["name"]))[:MAX_NODES]

    @cached_property
    def _every(self) -> list[dict[str, Any]]:
        """With what stands beside the nodes (see `capacity_json` of runs/placing/known.py)."""
        pools = self.state.capacity.get("pools", {})
        return [
            {
                **node,
                **facts,
                "counted": [_counted(each) for each in facts.get("slices", ()) if is_gpu(each["resource"])],
            }
            for node in self.state.capacity.get("nodes", [])
            for facts in [pools.get(node["name"], {})]
        ]

    @property
    def hidden(self) -> int:
        return max(0, len(self.state.capacity.get("nodes", [])) - MAX_NODES)

    @property
    def gpus(self) -> int:
        return sum(node["gpus"] for node in self._every)

    @property
    def gpus_free(self) -> int:
        return sum(node["gpus_free"] for node in self._every)


def _counted(slices: dict[str, Any]) -> str:
    return f"{slices['free']} of {slices['total']} {short(slices['resource'])}"


@require_safe
def flavors(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    names, now = titles(), timezone.now()
    states = CloudState.objects.filter(name__in=names).order_by("name")
    clouds = [CloudNodes(state, names[state.name], silence(state, names[state.name], now)) for state in states]
    context = {"flavors": Flavor.objects.all(), "clouds": clouds}
    return render(request, "clusters/catalog/flavors.html", context)


@require_safe
def images(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    return render(request, "clusters/catalog/images.html", {"images": Image.objects.all()})


@require_http_methods(["GET", "HEAD", "POST"])
def flavor(request: HttpRequest, name: str | None = None) -> HttpResponse:
    require_administrator(person(request))
    return edit_offer(request, FlavorForm, offer_named(Flavor, name), "admin_flavors", "Flavor")


@require_http_methods(["GET", "HEAD", "POST"])
def image(request: HttpRequest, name: str | None = None) -> HttpResponse:
    require_administrator(person(request))
    return edit_offer(request, ImageForm, offer_named(Image, name), "admin_images", "Image")


def offer_named(model: type[Offer], name: str | None) -> Offer:
    found = model() if name is None else model.objects.filter(name=name).first()
    if found is None:
        raise Http404(f"There is no {model.__name__.lower()} “{name}”.")
    return found


def edit_offer(request: HttpRequest, form_class: type[Any], offer: Any, back: str, kind: str) -> HttpResponse:
    """The page of one entry or a new one; `back` is the URL name of the list."""
    known = offer.pk is not None
    initial = form_class.filled(offer) if known else {}
    form = form_class(request.POST, initial=initial) if request.method == "POST" else form_class(initial=initial)
    if known:
        form.fields["name"].disabled = True
    if request.method == "POST" and form.is_valid():
        try:
            save_offer(form.write(offer), acting_user=person(request))
        except Invalid as invalid:
            show_errors(
                form, invalid, {name: name for name in form.fields} | {"cpu_milli": "cores", "memory_mb": "memory_gib"}
            )
        else:
            messages.success(request, f"{kind} {offer.title} is saved.")
            return redirect(back)
    title = offer.title if known and not form.errors else f"New {kind.lower()}" if not known else form.initial["title"]
    return render(
        request, "clusters/catalog/edit.html", {"form": form, "title": title, "back": back, "list": f"{kind}s"}
    )
