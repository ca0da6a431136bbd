"""The forms of a datastore, one per kind. A form only parses the input into a manifest; manifest and action validate it."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from datastores import exports
from datastores.access import allowed_folders
from datastores.files.retention import KINDS, RuleSpec
from datastores.models import Datastore
from datastores.specs import DatastoreManifest, Kind
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Appcode
from portal.pages.forms import Words

_PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}


class DatastoreForm(forms.Form):
    """The fields of every kind. Each kind adds its own, named as in the manifest."""

    kind: ClassVar[Kind]
    # Fields with another name in the manifest.
    renamed: ClassVar[dict[str, str]] = {}

    name = Words(
        label="Name",
        help_text="Clusters mount it by this name. Lower-case letters, digits and “-”.",
        widget=forms.TextInput(attrs=_PLAIN),
    )
    appcode = Words(label="Appcode", help_text="Its members see the data.", widget=forms.Select())

    def __init__(
        self, data: Any = None, *, appcodes: list[Appcode], store: Datastore | None = None, chosen: str = ""
    ) -> None:
        super().__init__(data, initial=self._shown(store) if store else {"appcode": chosen})
        codes = [appcode.code for appcode in appcodes]
        choices = [] if len(codes) == 1 or chosen in codes else [("", "Choose…")]
        self.fields["appcode"].widget.choices = [*choices, *((code, code) for code in codes)]
        if store:
            for name in ("name", "appcode"):
                self.fields[name].disabled = True
                self.fields[name].help_text = "It stays: clusters refer to it."

    @classmethod
    def paths(cls) -> dict[str, str]:
        """Manifest paths → fields, for `portal.pages.forms.show_errors`."""
        own = [name for name in cls.base_fields if name not in ("name", "appcode")]
        paths = {f"spec.{cls.kind}.{cls.renamed.get(name, name)}": name for name in own}
        return {"metadata.name": "name", "metadata.appcode": "appcode", **paths}

    def manifest(self) -> DatastoreManifest:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        typed = {name: value.strip() for name, value in self.cleaned_data.items()}
        metadata = {name: typed.pop(name) for name in ("name", "appcode")}
        # Empty fields get the manifest's default.
        given = {name: value for name, value in typed.items() if value or self.fields[name].required}
        fields = {self.renamed.get(name, name): value for name, value in given.items()}
        return parse(DatastoreManifest, {"metadata": metadata, "spec": {self.kind: fields}})

    def _shown(self, store: Datastore) -> dict[str, str]:
        back = {name: field for field, name in self.renamed.items()}
        fields = {back.get(name, name): value for name, value in store.spec.items()}
        return {**fields, "name": store.name, "appcode": store.appcode.code}


class S3Form(DatastoreForm):
    kind = "s3"
    renamed: ClassVar[dict[str, str]] = {"folder": "prefix"}

    server = Words(
        label="Server",
        help_text="Its address, like https://s3.example.com:9000.",
        widget=forms.TextInput(attrs={**_PLAIN, "inputmode": "url", "placeholder": "https://"}),
    )
    bucket = Words(label="Bucket", widget=forms.TextInput(attrs=_PLAIN))
    folder = Words(
        label="Folder",
        required=False,
        help_text="Only this folder of the bucket.",
        widget=forms.TextInput(attrs=_PLAIN),
    )
    access_key = Words(label="Access key", widget=forms.TextInput(attrs=_PLAIN))
    secret_key = Words(
        label="Secret key",
        help_text="Stored encrypted and never shown again.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password", "spellcheck": "false"}),
    )
    region = Words(
        label="Region",
        required=False,
        help_text="us-east-1 when left empty; most servers of your own do not care.",
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "us-east-1"}),
    )

    def __init__(self, data: Any = None, *, store: Datastore | None = None, **more: Any) -> None:
        super().__init__(data, store=store, **more)
        if store:
            field = self.fields["secret_key"]
            field.required = False
            field.widget.attrs["placeholder"] = "kept"
            field.help_text = "Leave it empty to keep the one that is stored."


class NfsForm(DatastoreForm):
    kind = "nfs"

    server = Words(
        label="Server", help_text="Name or IP address of the NFS server.", widget=forms.TextInput(attrs=_PLAIN)
    )
    path = Words(
        label="Path",
        help_text="The folder that it exports, like /data/training.",
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "/"}),
    )

    def __init__(self, data: Any = None, *, appcodes: list[Appcode], **more: Any) -> None:
        super().__init__(data, appcodes=appcodes, **more)
        self.allowed = sorted({each for appcode in appcodes for each in exports.allowed(appcode.code)})
        if not self.allowed:
            self.fields["server"].help_text = "An administrator has not allowed any NFS server yet."


class VolumeForm(DatastoreForm):
    kind = "volume"

    storage_class = Words(
        label="Storage class",
        required=False,
        help_text="How Kubernetes makes it, like ceph-rbd; an administrator knows which there are. Empty for the default.",
        widget=forms.TextInput(attrs=_PLAIN),
    )
    size = Words(
        label="Size",
        help_text="Like 20Gi, 500Mi or 2Ti. It can grow later and never shrinks.",
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "20Gi"}),
    )
    access_mode = Words(
        label="Mounted by",
        help_text="Many tasks only if the storage class can do that, as CephFS can and RBD cannot.",
        widget=forms.Select(
            choices=[
                ("ReadWriteOnce", "one task (ReadWriteOnce)"),
                ("ReadWriteMany", "many tasks (ReadWriteMany)"),
            ]
        ),
    )

    def __init__(self, data: Any = None, *, store: Datastore | None = None, **more: Any) -> None:
        super().__init__(data, store=store, **more)
        if store and store.made:
            for name in ("storage_class", "access_mode"):
                self.fields[name].disabled = True
                self.fields[name].help_text = "It stays: the volume has been made."


class LocalForm(DatastoreForm):
    kind = "local"

    path = Words(
        label="Folder",
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "/", "list": "allowed-folders"}),
    )

    def __init__(self, data: Any = None, *, appcodes: list[Appcode], **more: Any) -> None:
        super().__init__(data, appcodes=appcodes, **more)
        self.allowed = sorted({folder.path for appcode in appcodes for folder in allowed_folders(appcode)})
        self.fields["path"].help_text = (
            "A folder of the portal's machine in one that an administrator allowed."
            if self.allowed
            else "An administrator has not allowed any folder of this machine yet."
        )


class FolderForm(forms.Form):
    """A folder of this machine that datastores may lie in; for administrators."""

    path = Words(
        label="Folder",
        help_text="An absolute path; datastores may lie in it or below.",
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "/data"}),
    )
    read_only = forms.BooleanField(label="For reading only", required=False)
    appcodes = Words(
        label="Only for these appcodes",
        required=False,
        help_text="Codes divided by commas; everybody when left empty.",
        widget=forms.TextInput(attrs=_PLAIN),
    )


class RenameForm(forms.Form):
    """The new path of a file, or of a copy."""

    to = Words(
        label="New name, with its folder",
        help_text="From the top of the datastore. A new folder is created with its first file; no file is replaced.",
        widget=forms.TextInput(attrs={**_PLAIN, "class": "code"}),
    )


class SharingForm(forms.Form):
    """Who else may read a datastore."""

    appcodes = Words(
        label="Appcodes",
        help_text="Their codes, divided by spaces or commas.",
        widget=forms.Textarea(attrs={**_PLAIN, "rows": 2, "class": "code"}),
    )
    lines = Words(
        label="Business lines",
        help_text="With everything below them, for example qunarcorp.ops.",
        widget=forms.Textarea(attrs={**_PLAIN, "rows": 2, "class": "code"}),
    )
    everybody = forms.BooleanField(label="Everybody who is signed in", required=False)


class RuleForm(forms.Form):
    """A rule. Only the number field of the chosen kind counts."""

    kind = Words(label="What goes", widget=forms.Select(choices=[*KINDS.items()]))
    path = Words(
        label="Folder",
        help_text="With all below it; the whole datastore when left empty.",
        required=False,
        widget=forms.TextInput(attrs={**_PLAIN, "class": "code"}),
    )
    days = Words(
        label="After days",
        help_text="Since the run failed, or the file was written.",
        widget=forms.NumberInput(attrs={"min": 1, "max": 3650}),
    )
    keep = Words(
        label="Keep the last",
        help_text="Checkpoints of each series.",
        widget=forms.NumberInput(attrs={"min": 1, "max": 1000}),
    )

    def spec(self) -> RuleSpec:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        typed = {name: value.strip() for name, value in self.cleaned_data.items()}
        typed.pop("days" if typed["kind"] == "checkpoints" else "keep")
        return parse(RuleSpec, {name: value for name, value in typed.items() if value})


FORMS: dict[str, type[DatastoreForm]] = {"s3": S3Form, "nfs": NfsForm, "volume": VolumeForm, "local": LocalForm}
