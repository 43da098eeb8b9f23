"""configs/deploy/feeders: the files hold together, and fit schemas. Nothing here asks a cluster.

Kinds of Kubernetes itself are checked by `kubernetes-validate`, if it is installed. For the kinds of JobSet, KEDA,
cert-manager and Kubeflow Trainer the schemas below have the fields that these files use, and refuse others.
"""

import shutil
import subprocess

import pytest
from support import PROGRAM, ROOT

yaml = pytest.importorskip("yaml")
# Since Python 3.11.
tomllib = pytest.importorskip("tomllib")

FOLDER = ROOT / "configs" / "deploy" / "feeders"
KINDS = ("deployment", "jobset", "kubeflow")
# The oldest release whose side-cars restart.
OLDEST = "1.29"


def fields(required="", **known):
    """An object with these fields alone."""
    return {"type": "object", "properties": known, "required": required.split(), "additionalProperties": False}


TEXT, NUMBER, ANY = {"type": "string"}, {"type": "integer"}, {"type": "object"}
TEXTS = {"type": "array", "items": TEXT}


def one_of(*words):
    return {"enum": list(words)}


def replicated_jobs(label=ANY):
    job = fields("template", metadata=label, spec=fields(
        "template", parallelism=NUMBER, completions=NUMBER, backoffLimit=NUMBER, template=ANY
    ))  # fmt: skip
    return {"type": "array", "minItems": 1, "items": fields("name template", name=TEXT, replicas=NUMBER, template=job)}


POLICY = fields("operator", operator=one_of("All", "Any"), targetReplicatedJobs=TEXTS)
POLICY["required"] = ["operator"]
JOBS = replicated_jobs()
JOBS["items"]["properties"]["template"]["required"] = ["spec"]
SCHEMAS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): fields(
        "replicatedJobs", successPolicy=POLICY, failurePolicy=fields(maxRestarts=NUMBER), replicatedJobs=JOBS
    ),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): fields(
        "template",
        mlPolicy=fields(numNodes=NUMBER, torch=ANY),
        template=fields("spec", spec=fields("replicatedJobs", successPolicy=POLICY, replicatedJobs=JOBS)),
    ),
    ("cert-manager.io/v1", "Issuer"): fields(selfSigned=fields(), ca=fields("secretName", secretName=TEXT)),
    ("cert-manager.io/v1", "Certificate"): fields(
        "secretName issuerRef",
        isCA={"type": "boolean"},
        commonName=TEXT,
        secretName=TEXT,
        dnsNames=TEXTS,
        usages={"type": "array", "items": one_of("digital signature", "server auth", "client auth")},
        duration={"type": "string", "pattern": "^[0-9]+h$"},
        renewBefore={"type": "string", "pattern": "^[0-9]+h$"},
        privateKey=fields(
            algorithm=one_of("ECDSA"), size=NUMBER, encoding=one_of("PKCS1", "PKCS8"), rotationPolicy=one_of("Always")
        ),
        issuerRef=fields("name", name=TEXT, kind=one_of("Issuer")),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        "scaleTargetRef triggers",
        scaleTargetRef=fields("name", name=TEXT),
        pollingInterval=NUMBER,
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        fallback=fields(
            "failureThreshold replicas", failureThreshold=NUMBER, replicas=NUMBER, behavior=one_of("currentReplicas")
        ),
        advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=ANY)),
        triggers={
            "type": "array",
            "items": fields(
                "type metadata",
                type=one_of("metrics-api"),
                metricType=one_of("AverageValue", "Value"),
                metadata=fields(
                    "url valueLocation targetValue",
                    url=TEXT,
                    format=one_of("prometheus"),
                    valueLocation=TEXT,
                    # KEDA reads texts alone.
                    targetValue=TEXT,
                    aggregateFromKubeServiceEndpoints=one_of("true"),
                    aggregationType=one_of("sum"),
                ),
            ),
        },
    ),
}


def read(file):
    return list(yaml.safe_load_all(file.read_text()))


def resources(kind):
    """Those of a folder and of its base, as they lie there."""
    return [part for folder in (FOLDER / "base", FOLDER / kind) for file in sorted(folder.glob("*.yaml"))
            if file.name != "kustomization.yaml" for part in read(file)]  # fmt: skip


def of(parts, kind):
    return {part["metadata"]["name"]: part for part in parts if part["kind"] == kind}


def pods(parts):
    """All pod templates by what they are."""
    found = {}
    for part in parts:
        if part["kind"] == "Deployment":
            templates = [part["spec"]["template"]]
        elif part["kind"] in ("JobSet", "ClusterTrainingRuntime"):
            jobs = part["spec"].get("replicatedJobs") or part["spec"]["template"]["spec"]["replicatedJobs"]
            templates = [job["template"]["spec"]["template"] for job in jobs]
        else:
            continue
        for template in templates:
            found[template["metadata"]["labels"]["app.kubernetes.io/name"]] = template
    return found


def config():
    return tomllib.loads((FOLDER / "base/train.toml").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_every_resource_fits_its_schema(kind):
    validate = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    checked = set()
    for part in resources(kind):
        schema = SCHEMAS.get((part["apiVersion"], part["kind"]))
        checked.add(part["kind"])
        if schema is None:
            validate.validate(part, OLDEST, strict=True)
        else:
            jsonschema.validate(part["spec"], schema)
            assert set(part) == {"apiVersion", "kind", "metadata", "spec"}
    for name, template in pods(resources(kind)).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        validate.validate(pod, OLDEST, strict=True)
    assert {"Service", "Certificate", "Issuer", "NetworkPolicy"} < checked


def test_schemas_refuse_what_they_do_not_know():
    jsonschema = pytest.importorskip("jsonschema")
    for part in [part for kind in KINDS for part in resources(kind)]:
        schema = SCHEMAS.get((part["apiVersion"], part["kind"]))
        if schema is not None:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**part["spec"], "replcias": 1}, schema)


@pytest.mark.parametrize("kind", KINDS)
def test_kustomize_builds_it(kind):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run(["kubectl", "kustomize", FOLDER / kind], capture_output=True, text=True, check=True).stdout
    parts = [(part["kind"], part["metadata"]["name"]) for part in yaml.safe_load_all(built)]
    wanted = [(part["kind"], part["metadata"]["name"]) for part in resources(kind)]
    assert sorted(parts) == sorted([*wanted, ("ConfigMap", "forebay-train")])


@pytest.mark.parametrize("kind", KINDS)
def test_feeders_and_trainers_fit_together(kind):
    parts, read_by_all = resources(kind), config()
    services, certificates = of(parts, "Service"), of(parts, "Certificate")
    [address] = read_by_all["feeders"]["addresses"]
    name, _, port = address.partition(":")
    service = services[name]["spec"]
    assert service["clusterIP"] == "None", "each feeder is an address"
    assert [int(port)] == [p["port"] for p in service["ports"]]
    found = pods(parts)
    feeder = found["forebay-feeder"]
    # JobSet adds its name to each pod.
    added = dict.fromkeys(["jobset.sigs.k8s.io/jobset-name"] if kind == "jobset" else [], "forebay-train")
    assert service["selector"].items() <= {**feeder["metadata"]["labels"], **added}.items()
    [container] = feeder["spec"]["containers"]
    listen = container["args"][container["args"].index("--listen") + 1]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert listen.endswith(f":{port}") and ports["rows"] == int(port)
    assert read_by_all["listen"]["metrics"].endswith(f":{ports['metrics']}")
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    secrets = {}
    for label, pod in found.items():
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for each in spec["containers"] + spec.get("initContainers", []):
            assert {mount["name"] for mount in each["volumeMounts"]} <= volumes.keys()
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            if each["command"] == ["forebay"]:
                mounts = {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]}
                assert each["args"][1] == f"{mounts['config']}/train.toml"
                assert all(path.startswith(f"{mounts['tls']}/") for path in tls_files(read_by_all))
                assert read_by_all["dataset"]["path"].startswith(mounts["data"])
        assert spec["securityContext"]["runAsNonRoot"] is True
        secrets[label] = volumes["tls"]["secret"]["secretName"]
    # Each side has a certificate of its own, for its purpose, with the name that the other side asks for.
    by_secret = {part["spec"]["secretName"]: part["spec"] for part in certificates.values()}
    side = by_secret[secrets["forebay-feeder"]]
    assert "server auth" in side["usages"] and read_by_all["feeders"]["tls"]["name"] in side["dnsNames"]
    if "forebay-trainer" in secrets:
        side = by_secret[secrets["forebay-trainer"]]
        assert "client auth" in side["usages"] and read_by_all["feed"]["allow"] == side["dnsNames"]
    # The authority's key is mounted nowhere.
    assert "forebay-ca" not in secrets.values()


def tls_files(read_by_all):
    return [read_by_all[table]["tls"][file] for table in ("feed", "feeders") for file in ("ca", "cert", "key")]


@pytest.mark.parametrize("kind", ["jobset", "kubeflow"])
def test_job_ends_with_its_trainers(kind):
    [part] = [part for part in resources(kind) if part["kind"] in ("JobSet", "ClusterTrainingRuntime")]
    spec = part["spec"] if kind == "jobset" else part["spec"]["template"]["spec"]
    names = {job["name"] for job in spec["replicatedJobs"]}
    assert set(spec["successPolicy"]["targetReplicatedJobs"]) == names - {"feeders"}
    found = pods(resources(kind))
    assert found["forebay-feeder"]["spec"]["restartPolicy"] == "OnFailure"
    [daemon] = found["forebay-trainer"]["spec"]["initContainers"]
    assert daemon["restartPolicy"] == "Always", "a side-car"


def test_keda_reads_the_gauge_where_trainers_serve_it():
    parts = resources("deployment")
    scaled = of(parts, "ScaledObject")["forebay-feeders"]["spec"]
    assert scaled["scaleTargetRef"]["name"] in of(parts, "Deployment")
    # The number is KEDA's alone: with `replicas`, each apply would set it back.
    assert "replicas" not in of(parts, "Deployment")["forebay-feeders"]["spec"]
    [trigger] = scaled["triggers"]
    host, _, port = trigger["metadata"]["url"].removeprefix("http://").removesuffix("/metrics").partition(":")
    service = of(parts, "Service")[host.split(".")[0]]["spec"]
    assert [int(port)] == [p["port"] for p in service["ports"]]
    assert config()["listen"]["metrics"].endswith(f":{port}")
    assert trigger["metadata"]["valueLocation"] == 'forebay_feeders_wanted{stream="train"}'


@pytest.mark.parametrize("kind", KINDS)
def test_policy_names_pods_and_ports_that_exist(kind):
    parts = resources(kind)
    policy = of(parts, "NetworkPolicy")["forebay-feeders"]["spec"]
    labels = pods(parts)["forebay-feeder"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    [container] = pods(parts)["forebay-feeder"]["spec"]["containers"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == {port["containerPort"] for port in container["ports"]}


def test_program_reads_the_configuration_but_for_its_data():
    checked = subprocess.run(
        [PROGRAM, "check", FOLDER / "base/train.toml"], capture_output=True, text=True, check=False
    )
    assert "dataset.path /data/imagenet/train does not exist" in checked.stderr
    assert 'addresses = ["forebay-feeders:9461"]' in checked.stdout
