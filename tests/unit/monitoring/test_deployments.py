"""deploy/: every file fits its schema, and all of them fit together."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml
from promql import ROOT, rules

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.31"
COMMAND = ["daemon", "--config", "/etc/memsampd/config.toml"]
PORT = 9753


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a manifest by kind."""
    text = (DEPLOY / "kubernetes" / name).read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container() -> dict[str, Any]:
    pod = documents("memsampd.yaml")["DaemonSet"]["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    found: dict[str, Any] = only
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


@pytest.mark.parametrize("kind", list(documents("memsampd.yaml")))
def test_manifests_fit_their_schemas(kind: str) -> None:
    kubernetes_validate.validate(documents("memsampd.yaml")[kind], KUBERNETES, strict=True)


def test_a_manifest_that_does_not_fit_is_refused() -> None:
    binding = {**documents("memsampd.yaml")["RoleBinding"], "roleReff": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(binding, KUBERNETES, strict=True)


def test_compose_fits_its_specification() -> None:
    compose_spec.PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text())
    with pytest.raises(Exception, match="imag"):
        compose_spec.PyCompose.from_yaml("services: {a: {imag: x}}")


def test_all_start_the_same_command() -> None:
    assert container()["args"] == COMMAND
    assert compose()["services"]["memsampd"]["command"] == COMMAND
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD (.*)$", text, re.M)
    assert json.loads(command) == COMMAND
    assert f"EXPOSE {PORT}" in text


def test_an_image_is_built_of_what_is_in_the_repository() -> None:
    """Neither of an environment nor of what was compiled here."""
    left_out = set((ROOT / ".dockerignore").read_text().split())
    made_here = re.findall(r"^/(.*)/$", (ROOT / ".gitignore").read_text(), re.M)
    assert made_here
    assert left_out >= {".git", *made_here}
    assert not left_out & {"src", "docs", "grafana", "prometheus", "meson.build"}


def test_both_have_the_least_privileges() -> None:
    pod = documents("memsampd.yaml")["DaemonSet"]["spec"]["template"]["spec"]
    service = compose()["services"]["memsampd"]
    context = container()["securityContext"]
    assert context["capabilities"]["drop"] == service["cap_drop"] == ["ALL"]
    assert context["capabilities"]["add"] == service["cap_add"]
    unit = (ROOT / "systemd/memsampd.service").read_text()
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.M)
    assert {f"CAP_{each}" for each in service["cap_add"]} == set(kept.split())
    assert pod["hostPID"]
    assert service["pid"] == "host"
    assert not pod["automountServiceAccountToken"]
    assert context["readOnlyRootFilesystem"]
    assert service["read_only"]


def test_the_service_monitor_finds_the_service() -> None:
    monitor = documents("servicemonitor.yaml")["ServiceMonitor"]
    service = documents("memsampd.yaml")["Service"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"]
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert {each["port"] for each in monitor["spec"]["endpoints"]} == set(ports)
    assert ports["http"]["port"] == PORT == container()["ports"][0]["containerPort"]
    assert service["metadata"]["name"] == "memsampd"  # the job that the rules look for
    template = documents("memsampd.yaml")["DaemonSet"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()


def test_the_network_policy_lets_prometheus_in_and_nobody_else() -> None:
    objects = documents("memsampd.yaml")
    policy, template = objects["NetworkPolicy"], objects["DaemonSet"]["spec"]["template"]
    spec = policy["spec"]
    assert policy["metadata"]["namespace"] == objects["DaemonSet"]["metadata"]["namespace"]
    # One that selects no pod protects none.
    assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert spec["egress"] == []
    (rule,) = spec["ingress"]
    (peer,) = rule["from"]  # both selectors in one peer: the pods of that name there
    (subject,) = objects["RoleBinding"]["subjects"]
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": subject["namespace"]
    }
    assert peer["podSelector"]["matchLabels"]
    (port,) = rule["ports"]
    assert port["port"] in {each["name"] for each in container()["ports"]}


def test_configurations_listen_where_they_are_scraped() -> None:
    node = tomllib.loads((DEPLOY / "config.toml").read_text())
    pod = tomllib.loads(documents("memsampd.yaml")["ConfigMap"]["data"]["config.toml"])
    assert node["listen"] == f"127.0.0.1:{PORT}"
    assert pod["listen"].endswith(f":{PORT}")
    scraped = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [node["listen"]]}]


def test_grafana_is_given_prometheus_and_the_dashboards() -> None:
    kept = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((kept / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"
    assert any("127.0.0.1:9090" in word for word in compose()["services"]["prometheus"]["command"])
    (provider,) = yaml.safe_load((kept / "dashboards/memsampd.yaml").read_text())["providers"]
    volumes = dict(
        reversed(volume.removesuffix(":ro").split(":"))
        for volume in compose()["services"]["grafana"]["volumes"]
    )
    assert (DEPLOY / volumes[provider["options"]["path"]]).resolve() == ROOT / "grafana"
    assert all((DEPLOY / path).exists() for path in volumes.values() if path.startswith("."))
    assert list(Path(ROOT / "grafana").glob("*.json"))


def test_nodes_of_a_fleet_are_told_apart_and_send_what_federation_asks_for() -> None:
    fleet, federation = (
        yaml.safe_load((ROOT / "prometheus" / name).read_text())
        for name in ("fleet.yml", "federation.yml")
    )
    (job,) = fleet["scrape_configs"]
    # The address is the same on each of them, and series of a command have no instance.
    (scraped,) = job["static_configs"]
    assert scraped["labels"]["instance"] == fleet["global"]["external_labels"]["node"]
    (kept,) = fleet["remote_write"][0]["write_relabel_configs"]
    asked = federation["scrape_configs"][0]["params"]["match[]"]
    named = [re.sub(r'^{__name__=~"(.*)"}$', r"\1", each).partition("{")[0] for each in asked]
    assert "|".join(named) == kept["regex"]


def test_alerts_of_a_node_reach_somebody_and_what_they_compare_with_is_kept() -> None:
    text = (ROOT / "prometheus/fleet.yml").read_text()
    (manager,) = yaml.safe_load(text)["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"]
    (kept_days,) = map(int, re.findall(r"--storage.tsdb.retention.time=(\d+)d", text))
    alerts = [str(rule["expr"]) for rule in rules("memsampd.alerts.yml")]
    offset_weeks = [int(week) for alert in alerts for week in re.findall(r"offset (\d+)w", alert)]
    recorded_days = 1
    assert kept_days > 7 * max(offset_weeks) + recorded_days
