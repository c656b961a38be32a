"""A real Prometheus and a real Alertmanager, with the shipped rules at short intervals."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from commands import free_port
from needed import tool
from waiting import wait_for

RATE_INTERVAL = "15s"
OFTEN = "500ms"


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Ports of this machine: where they listen, and what they scrape.

    Attributes:
        prometheus: of Prometheus.
        scraped: of memsampd; 0: of several.
        alertmanager: of Alertmanager; 0: there is none.
    """

    prometheus: int
    scraped: int
    alertmanager: int = 0

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus for the present."""
        words = urllib.parse.urlencode({"query": expression})
        return list(self._get(self.prometheus, f"/api/v1/query?{words}")["data"]["result"])

    def label_values(self, selector: str, label: str) -> list[str]:
        """Ask for a label's values, as Grafana's variables do."""
        words = urllib.parse.urlencode({"match[]": selector})
        return list(self._get(self.prometheus, f"/api/v1/label/{label}/values?{words}")["data"])

    def alerts(self) -> dict[str, dict[str, str]]:
        """Labels of the alerts that Alertmanager shows, by name, once it is up."""
        where = self.alertmanager, "/api/v2/alerts?active=true"
        (shown,) = wait_for(lambda: _told(lambda: [self._get(*where)]), "an Alertmanager")
        return {alert["labels"]["alertname"]: alert["labels"] for alert in shown}

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """Wait until Prometheus has an answer."""
        return list(wait_for(lambda: _told(lambda: self.query(expression)), expression))

    def wait_for_figures(self, expression: str) -> list[dict[str, Any]]:
        """Wait until Prometheus has an answer, and every series of it a value."""

        def found() -> list[dict[str, Any]] | None:
            series = self.wait_for(expression)
            return series if all(each["value"][1] != "NaN" for each in series) else None

        return list(wait_for(found, f"a value in each of {expression}"))

    def wait_for_alert(self, name: str) -> dict[str, str]:
        """Wait until Alertmanager shows an alert."""
        return dict(wait_for(lambda: self.alerts().get(name), name))

    @staticmethod
    def _get(port: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)


def _told(ask: Callable[[], Any]) -> Any:
    """What a server says; None while it is not up yet."""
    with suppress(OSError, KeyError):
        return ask()
    return None


def hurried(shipped: Path) -> str:
    """A shipped file of rules with windows, pauses and waits of seconds."""
    content = yaml.safe_load(shipped.read_text())
    for group in content["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[\d+[smhd]\]", f"[{RATE_INTERVAL}]", rule["expr"])
            rule["expr"] = re.sub(r"offset \d+[smhdw]", "offset 1s", rule["expr"])
            if "for" in rule:
                rule["for"] = "1s"
    return yaml.safe_dump(content)


@contextmanager
def monitoring(kept: Path, directory: Path) -> Iterator[Monitoring]:
    """Both run, or will soon.

    Args:
        kept: the directory of prometheus.yml and the rules.
        directory: for their data.
    """
    program = tool("prometheus-alertmanager", "prometheus-alertmanager")
    ports = Monitoring(free_port(), free_port(), free_port())
    config = yaml.safe_load((kept / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": OFTEN, "evaluation_interval": OFTEN}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{ports.scraped}"]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [
        f"127.0.0.1:{ports.alertmanager}"
    ]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    for name in config["rule_files"]:
        (directory / name).write_text(hurried(kept / name))
    (directory / "alertmanager.yml").write_text(
        "route: {receiver: nobody, group_wait: 1s}\nreceivers: [{name: nobody}]\n"
    )
    alertmanager = (
        program,
        f"--config.file={directory / 'alertmanager.yml'}",
        f"--storage.path={directory / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{ports.alertmanager}",
        "--cluster.listen-address=",
    )
    with prometheus(directory, ports.prometheus), _running(alertmanager, directory):
        yield ports


@contextmanager
def prometheus(directory: Path, port: int) -> Iterator[None]:
    """A Prometheus; its configuration, prometheus.yml, its data and its log are in a directory."""
    command = (
        tool("prometheus", "prometheus"),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'series'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--scrape.discovery-reload-interval=100ms",  # else it is five seconds later that it begins
    )
    with _running(command, directory):
        yield


def scraping(*ports: int) -> str:
    """A configuration of Prometheus that has ports of this machine scraped."""
    return (
        f"scrape_configs:\n- job_name: memsampd\n  scrape_interval: {OFTEN}\n"
        f"  static_configs:\n  - targets: {[f'127.0.0.1:{port}' for port in ports]}\n"
    )


@contextmanager
def _running(command: Sequence[str], directory: Path) -> Iterator[None]:
    with (directory / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
