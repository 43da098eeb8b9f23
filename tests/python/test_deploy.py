"""configs/deploy: the side-car's manifest holds together, and the unit is one that systemd takes."""

import json
import re
import shutil
import subprocess

import numpy
import pytest
from support import PROGRAM, ROOT, run_program

yaml = pytest.importorskip("yaml")
image = pytest.importorskip("PIL.Image")

FOLDER = ROOT / "configs" / "deploy"
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def size(text):
    return int(text[:-2]) * UNITS[text[-2:]]


@pytest.fixture
def manifest():
    config, pod = yaml.safe_load_all((FOLDER / "kubernetes-sidecar.yaml").read_text())
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    return config, pod["spec"]


def mounts(container):
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_side_car_and_its_trainer_fit_together(manifest):
    config, pod = manifest
    [daemon] = pod["initContainers"]
    [trainer] = pod["containers"]
    assert daemon["restartPolicy"] == "Always", "a side-car, which is started again, and not a step before"
    # One user: the socket is its alone.
    assert pod["securityContext"]["runAsUser"] > 0
    for container in (daemon, trainer):
        assert "runAsUser" not in container["securityContext"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    # The same folder, and the socket in it, by the same name.
    socket = daemon["args"][daemon["args"].index("--socket") + 1]
    folder = mounts(daemon)["socket"]
    assert folder == mounts(trainer)["socket"] and socket.startswith(folder + "/")
    assert {"name": "FOREBAY_SOCKET", "value": socket} in trainer["env"]
    # The kubelet and the scraper ask where the daemon answers, and may.
    [port] = daemon["ports"]
    for probe, path in (("startupProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert daemon[probe]["httpGet"] == {"path": path, "port": port["name"]}
    [text] = config["data"].values()
    assert f'metrics = "0.0.0.0:{port["containerPort"]}"\nmetrics_from = "anywhere"\n' in text
    # Every mount has its volume.
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes >= set(mounts(daemon)) | set(mounts(trainer))
    # The GPU is the trainer's.
    assert not any("gpu" in name for name in daemon["resources"]["requests"])
    # The configuration is where the daemon looks.
    [name] = config["data"]
    assert f"{mounts(daemon)['config']}/{name}" in daemon["args"]


def test_the_side_cars_memory_holds_the_ring(manifest, tmp_path):
    config, pod = manifest
    [(name, text)] = config["data"].items()
    file = tmp_path / name
    file.write_text(text)
    for number in range(512):
        folder = tmp_path / "images" / f"class-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        if number < 300:
            image.fromarray(numpy.zeros((8, 8, 3), numpy.uint8)).save(folder / f"{number}.png")
    keys = [f"dataset.path={tmp_path / 'images'}", f"dataset.index={tmp_path / 'index'}"]
    done = run_program("check", file, *(f"--set={key}" for key in keys))
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("memory = ")]
    ring = line.split('"')[1].replace("iB", "i")
    limits = pod["initContainers"][0]["resources"]
    assert limits["limits"]["memory"] == limits["requests"]["memory"]
    assert size(limits["limits"]["memory"]) >= size(ring) + size("512Mi")


def test_the_dashboard_asks_for_documented_names_and_labels_only():
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(forebay_\w+)` \| (\w+) \|([^|]*)\|", table, re.MULTILINE)
    labels = {name: set(re.findall(r"`(\w+)`", cell)) for name, _, cell in rows}
    for name, kind, _ in rows:
        if kind == "histogram":
            labels.update(
                {f"{name}_bucket": labels[name] | {"le"}, f"{name}_sum": labels[name], f"{name}_count": labels[name]}
            )
    dashboard = json.loads((FOLDER / "grafana-forebay.json").read_text())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "stream", "rank"}
    queries = [variable["definition"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    legends = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set()
    for query, legend in zip(queries, ["", "", *legends]):
        names = re.findall(r"\bforebay_\w+", query)
        assert len(names) == 1, query
        [name] = names
        assert name in labels, f"{name} is not in docs/reference/metrics.md"
        asked.add(name)
        used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"{{(\w+)}}", legend)
        assert set(used) <= labels[name] | {"instance"}, query
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval"}, query
    assert len(asked) > 12
    # No panel lies on another.
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_systemd_takes_the_unit(tmp_path):
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (FOLDER / "forebay@.service").read_text()
    assert "/usr/local/bin/forebay serve" in unit
    for line in ("Type=notify", "WatchdogSec=30s", "Restart=always", "CPUWeight=20"):
        assert line in unit.splitlines(), line
    (tmp_path / "forebay@.service").write_text(unit.replace("/usr/local/bin/forebay", PROGRAM))
    command = [verifier, "verify", "--man=no", str(tmp_path / "forebay@train.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own = [line for line in done.stderr.splitlines() if "forebay" in line]
    assert not own, own
