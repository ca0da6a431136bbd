"""A retention rule deletes a failed run's output, but not while another run reads it; on the real node agent and S3 server."""

import datetime as dt

import pytest
from django.utils import timezone

from clusters.clouds.registry import cloud, run_ref
from clusters.cluster import actions
from clusters.runs.models import Run
from datastores.files import rules, trash
from datastores.files.retention import RuleSpec
from datastores.models import Datastore, Removal

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def results(people, s3, bucket):
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    return Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)


WHEEL = """
import zipfile
with zipfile.ZipFile("greeter-1.0-py3-none-any.whl", "w") as file:
    info = "greeter-1.0.dist-info"
    file.writestr("greeter.py", "def main(): print('greeted')")
    file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: greeter\\nVersion: 1.0\\n")
    file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    file.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ngreet = greeter:main\\n")
    file.writestr(f"{info}/RECORD", "")
"""
PROGRAM = """
set -e
pwd; whoami; python -c "import getpass; print(getpass.getuser())"; git --version | cut -c1-3
python wheel.py
pip install --quiet --no-index ./greeter*.whl && greet
python -c "import sys, numpy; print(sys.prefix, numpy.__name__)"
pip uninstall --quiet --yes greeter; pip install --quiet --no-index --user ./greeter*.whl && hash -r && greet
pip uninstall --quiet --yes greeter; uv pip install --quiet --offline ./greeter*.whl && hash -r && greet
python -m venv --system-site-packages --without-pip env && env/bin/python -c "import numpy, greeter; greeter.main()"
mkdir logs ~/.cache/ours; echo 1 > logs/events; echo 2 > model.keras; echo 3 > kept.txt; ln -s model.keras latest
python -c "import imported"
"""


def test_a_program_writes_where_it_starts_and_installs_packages(loop, people, manifest, results, s3):
    """Third-party programs expect a folder, a name and a working pip. The run stores what they write, but not their code."""
    files = {"wheel.py": WHEEL, "kept.txt": "0", "imported.py": "print(open('kept.txt').read())", "same/data.txt": "x"}
    cluster = actions.create_cluster(
        manifest("program", PROGRAM, output="results", code={"files": files}), acting_user=people.bob
    )
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    said = cloud("local").log(run_ref(run), "master", 0, attempt=0).data.decode()
    assert run.phase == "Succeeded", said
    assert said == (
        "/elearn/work\nelearn\nelearn\ngit\ngreeted\n/tmp/.packages numpy\ngreeted\ngreeted\ngreeted\n3\n\n"
    )
    loop.until(lambda: Run.objects.get(current_of=cluster).gone)
    found = s3.client.list_objects_v2(Bucket=results.spec["bucket"])["Contents"]
    names = {each["Key"].removeprefix("program/1/work/master-0/") for each in found}
    assert names == {"greeter-1.0-py3-none-any.whl", "kept.txt", "latest", "logs/events", "model.keras"}


def test_the_output_of_a_failed_run_goes_when_nobody_reads_it(loop, people, manifest, results, s3, monkeypatch):
    def lying():
        found = s3.client.list_objects_v2(Bucket=results.spec["bucket"]).get("Contents", [])
        return {each["Key"] for each in found if not each["Key"].startswith(".portal-trash/")}

    write = "echo 12345 > /elearn/output/half; exit {}"
    for name, code in (("good", 0), ("bad", 1)):
        cluster = actions.create_cluster(
            manifest(name, write.format(code), output="results", retries=0), acting_user=people.bob
        )
        loop.until_phase(cluster, "Succeeded", "Failed")
        loop.until(lambda cluster=cluster: Run.objects.get(current_of=cluster).gone)
    assert lying() == {"good/1/half", "bad/1/half"}
    reads = manifest("reads", "sleep 600", input={"datastore": "results", "path": "bad/1"})
    reader = actions.create_cluster(reads, acting_user=people.bob)
    loop.until_phase(reader, "Running", "Failed")

    spec = RuleSpec(kind="failed-runs", days=7)
    rule = rules.add(results, spec, acting_user=people.bob)
    assert (rules.preview(results, spec).going, rules.preview(results, spec).kept) == ((), ())
    with monkeypatch.context() as patch:
        now = timezone.now() + dt.timedelta(days=8)
        patch.setattr(timezone, "now", lambda: now)
        found = rules.preview(results, spec)
        assert (found.going, [(each.why, each.files, each.size) for each in found.kept]) == (
            (),
            [("run reads/1 reads it", 1, 6)],
        )
        rules.apply(rule)
        assert lying() == {"good/1/half", "bad/1/half"}
    actions.disable(reader, acting_user=people.bob)
    loop.until_phase(reader, "Stopped")
    loop.until(lambda: Run.objects.get(current_of=reader).gone)
    monkeypatch.setattr(timezone, "now", lambda: now)
    [item] = rules.preview(results, spec).going
    assert (item.path, item.is_folder, item.files, item.size, item.why) == ("bad/1", True, 1, 6, "run bad/1 failed")
    rules.apply(rule)
    assert lying() == {"good/1/half"}
    [row] = Removal.objects.all()
    assert (row.path, row.cause) == ("bad/1", "Outputs of failed runs go after 7 days")
    trash.restore(results, [row.pk], acting_user=people.bob)
    assert lying() == {"good/1/half", "bad/1/half"}
