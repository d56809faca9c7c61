"""The manifests for Kubernetes: valid, hardened, and agreeing with each other and with the worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.files import DEPLOY, MANIFESTS, load, manifest, option

NEWEST = kubernetes_validate.latest_version()
OLDEST = "1.29"
"""Of which the cluster may be: what came later is not used."""


def pods() -> list[dict[str, Any]]:
    return [manifest(kind)["spec"]["template"]["spec"] for kind in ("Deployment", "Job")]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_fits_its_schema(path: Path, version: str):
    kubernetes_validate.validate(load(path), version, strict=True)


def test_the_check_of_schemas_finds_what_does_not_fit():
    wrong = manifest("PodDisruptionBudget")
    wrong["spec"]["maxUnavailble"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_everything_is_applied_and_nothing_else():
    listed = load(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert sorted(listed["resources"]) == sorted(path.name for path in MANIFESTS)
    assert {image["name"] for image in listed["images"]} == {c["image"] for pod in pods() for c in pod["containers"]}


def test_kubernetes_waits_longer_than_the_worker_takes():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    grace = float(option(worker["args"], "--grace"))
    drained = float(option(worker["lifecycle"]["preStop"]["exec"]["command"], "--wait"))
    # What does not end within the grace period is cancelled, and then has five seconds to be put down.
    assert grace + 5 < drained < pod["terminationGracePeriodSeconds"]


def test_probes_and_scrapes_ask_the_port_that_is_served():
    template = manifest("Deployment")["spec"]["template"]
    (worker,) = template["spec"]["containers"]
    port = option(worker["args"], "--metrics-port")
    assert option(worker["args"], "--metrics-host") == "0.0.0.0"
    assert [(p["name"], str(p["containerPort"])) for p in worker["ports"]] == [("metrics", port)]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == port
    asked = {name: worker[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {get["port"] for get in asked.values()} == {"metrics"}
    assert asked["livenessProbe"]["path"] == "/healthz"
    assert asked["readinessProbe"]["path"] == asked["startupProbe"]["path"] == "/readyz"


@pytest.mark.parametrize("pod", pods(), ids=["worker", "migrate"])
def test_nothing_runs_as_root_or_with_more_rights_than_it_needs(pod: dict[str, Any]):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_secrets_are_referred_to_and_never_written_down():
    assert "Secret" not in {load(path)["kind"] for path in MANIFESTS}
    for pod in pods():
        for container in pod["containers"]:
            assert {"secretRef": {"name": "perdure"}} in container["envFrom"]
            assert {"configMapRef": {"name": "perdure"}} in container["envFrom"]
            assert "env" not in container
    config = manifest("ConfigMap")
    assert config["metadata"]["name"] == "perdure"
    assert not [key for key in config["data"] if re.search(r"KEY|SECRET|PASSWORD|TOKEN|STORE", key)]


def test_selectors_find_the_pods_they_are_meant_for():
    deployment, budget = manifest("Deployment"), manifest("PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    job = manifest("Job")["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
        assert not selector["matchLabels"].items() <= job.items()
    assert all(pod["serviceAccountName"] == manifest("ServiceAccount")["metadata"]["name"] for pod in pods())
