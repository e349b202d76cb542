"""The rules of docs/how-to/prometheus-alerts.yml, against the metrics that there are and against promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from geocomm.metrics import schema

PAGE = Path(__file__).parents[3] / "docs/how-to/monitor-with-prometheus.md"
RULES = PAGE.with_name("prometheus-alerts.yml")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def test_rule_names_only_metrics_that_are_at_the_endpoint() -> None:
    shown = {metric.prometheus for metrics in schema.TABLES.values() for metric in metrics}
    for rule in rules():
        named = set(re.findall(r"geocomm_\w+", rule["expr"]))
        assert named <= shown, rule["alert"]
        assert named or rule["expr"].startswith("up{"), rule["alert"]


def test_page_lists_every_alert_in_order() -> None:
    listed = re.findall(r"^- `(Geocomm\w+)`:", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [rule["alert"] for rule in rules()]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_rules_are_taken_by_promtool() -> None:
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
