"""The image and the compose file: what they name exists, and no secret is written in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, IMAGE, ROOT, compose, instructions, load, option
from tests.project.wheel import SOURCES, wheel

NEEDED = re.compile(r"\$\{(\w+):\?")
ANY_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)")


def services() -> dict[str, Any]:
    return compose()["services"]


def test_the_image_is_built_from_files_that_are_there():
    defaults = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = re.sub(r"\$\{(\w+)\}", lambda m: defaults[m[1]], rest).split()
            assert [s for s in sources if not (ROOT / s).exists()] == []
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    wanted = {"deploy/app.py", "src", "requirements", *SOURCES}
    assert wanted <= let_in


def test_the_image_runs_as_nobody_special_and_names_no_registry():
    words = instructions()
    images = [rest.split()[0] for word, rest in words if word == "FROM"]
    assert len(images) == 2
    assert all(IMAGE.fullmatch(image) for image in images)
    user = next(rest for word, rest in reversed(words) if word == "USER")
    assert int(user.split(":")[0]) > 0
    assert [rest for word, rest in words if word == "STOPSIGNAL"] == ["SIGTERM"]
    assert [json.loads(rest) for word, rest in words if word == "ENTRYPOINT"] == [["perdure"]]


def test_what_the_image_copies_is_enough_for_a_wheel_with_everything_in_it():
    """The wheel that the tests use is built from nothing else."""
    with zipfile.ZipFile(wheel()) as archive:
        packed = set(archive.namelist())
    wanted = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src/perdure").rglob("*") if p.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} <= packed


def test_every_pinned_requirement_of_a_worker_is_in_the_image():
    text = " ".join(rest for word, rest in instructions() if word == "RUN")
    named = set(re.findall(r"-r requirements/(\w+)\.txt", text))
    assert named == {"runtime", "servers", "agent", "fleet"}


def test_services_depend_on_services_and_volumes_that_there_are():
    file = compose()
    for name, service in services().items():
        assert IMAGE.fullmatch(service["image"]), name
        needs = service.get("depends_on", {})
        assert set(needs) <= set(services())
        for other, how in needs.items() if isinstance(needs, dict) else ():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services()[other]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in file["volumes"], volume
        for config in service.get("configs", ()):
            assert config["source"] in file["configs"]
    assert services()["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert {"postgres", "redis", "s3", "migrate", "worker"} <= set(services())


def test_passwords_come_from_outside_and_must_be_given():
    text = (DEPLOY / "docker-compose.yml").read_text(encoding="utf-8")
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    given = dict(line.split("=", 1) for line in example.splitlines() if line and not line.startswith("#"))
    assert set(ANY_VARIABLE.findall(text)) == set(given)
    assert set(given.values()) == {""}
    assert set(NEEDED.findall(text)) >= {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"}
    for service in services().values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY", name):
                assert value.startswith("${"), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_the_configuration_of_the_s3_server_is_json_once_it_is_filled_in():
    filled = re.sub(r"\$\{\w+:\?[^}]*\}", "filled", compose()["configs"]["s3"]["content"])
    (identity,) = json.loads(filled)["identities"]
    assert identity["credentials"] == [{"accessKey": "filled", "secretKey": "filled"}]


def test_the_s3_server_knows_the_options_it_is_started_with():
    command = services()["s3"]["command"]
    weed = Path(sys.executable).with_name("weed")
    known = subprocess.run([str(weed), command[0], "-h"], capture_output=True, text=True, check=False)
    options = set(re.findall(r"^  -([\w.]+)", known.stdout + known.stderr, re.MULTILINE))
    assert [o for o in command[1:] if o.split("=")[0].removeprefix("-") not in options] == []


@pytest.mark.parametrize("service", ["migrate", "worker"])
def test_our_own_containers_cannot_write_where_they_should_not(service: str):
    ours = services()[service]
    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]
    assert ours["environment"]["TMPDIR"] == ours["tmpfs"][0].split(":")[0]


def test_containers_are_stopped_later_than_the_worker_ends():
    worker = services()["worker"]
    assert float(worker["stop_grace_period"].removesuffix("s")) > float(option(worker["command"], "--grace")) + 5


def test_prometheus_asks_the_workers_on_the_port_they_serve():
    (scrape,) = load(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    assert found["names"] == ["worker"]
    assert str(found["port"]) == option(services()["worker"]["command"], "--metrics-port")
