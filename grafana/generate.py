"""Makes the dashboards beside it with Grafana's own library: ``python grafana/generate.py``.

A test fails if the JSON is not what this script makes, if a query names a metric that the catalogue
or the recording rules do not have, or if a real Prometheus has no answer to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shown
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HERE = Path(__file__).parent
TARGET = 'instance=~"$node", command=~"$command", pid=~"$pid"'
NODE = 'instance=~"$node"'
SOURCE = model.DataSourceRef(type_val="prometheus", uid="$datasource")
# Rows of a heat map come in the order of their labels, as text.
_DIGITS = 12


def padded(expression: str) -> str:
    """Return the expression with its sizes in a label whose values are all of one length."""
    for digits in range(3, _DIGITS):
        zeros = "0" * (_DIGITS - digits)
        expression = (
            f'label_replace({expression}, "size", "{zeros}$1", "size_bytes", "(.{{{digits}}})")'
        )
    return expression


def query(expression: str, legend: str = "", *, ref: str = "A") -> prometheus.Dataquery:
    """A query over the time shown."""
    built = prometheus.Dataquery().datasource(SOURCE).expr(expression).ref_id(ref).range()
    return built.legend_format(legend) if legend else built


def instant(expression: str, legend: str = "", *, ref: str = "A") -> prometheus.Dataquery:
    """A query of the present, as a table where there is no legend."""
    built = prometheus.Dataquery().datasource(SOURCE).expr(expression).ref_id(ref).instant()
    if legend:
        return built.legend_format(legend)
    return built.format(PromQueryFormat.TABLE)


def lines(
    title: str, unit: str, queries: Sequence[tuple[str, str]], about: str, *, span: int = 12
) -> timeseries.Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(8)
        .span(span)
        .fill_opacity(8)
        .legend(
            common.VizLegendOptions()
            .display_mode(shown.LegendDisplayMode.LIST)
            .placement(shown.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    for number, (expression, legend) in enumerate(queries):
        panel = panel.with_target(query(expression, legend, ref=chr(ord("A") + number)))
    return panel


def figure(title: str, unit: str, expression: str, about: str, *, span: int = 4) -> stat.Panel:
    """One number."""
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(span)
        .with_target(query(expression))
    )


def bars(title: str, unit: str, expression: str, legend: str, about: str) -> bargauge.Panel:
    """The largest of something, now."""
    return (
        bargauge.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(8)
        .span(8)
        .orientation(shown.VizOrientation.HORIZONTAL)
        .with_target(instant(expression, legend))
    )


def variable(name: str, label: str, values: str, *, several: bool) -> dashboard.QueryVariable:
    """A choice of label values."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(values)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC)
        .multi(several)
        .include_all(several)
    )


def board(title: str, uid: str, about: str) -> dashboard.Dashboard:
    """An empty dashboard with the choice of the machine."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["memsampd"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .editable()
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(
            variable("node", "node", "label_values(memsampd_target_up, instance)", several=True)
        )
    )


# -- one process -----------------------------------------------------------------------------------


def heat_map() -> heatmap.Panel:
    """Misses per access over time and size."""
    misses = f'rate(memsampd_misses_total{{{TARGET}, policy=~"$policy"}}[$__rate_interval])'
    accesses = f"sum(rate(memsampd_accesses_total{{{TARGET}}}[$__rate_interval]))"
    return (
        heatmap.Panel()
        .title("Miss ratio over time and cache size")
        .description(
            "Misses per access of each interval in a cache of each size. What runs at the size "
            "of a cache of this machine is what it sees; dark above is what a larger one saves."
        )
        .datasource(SOURCE)
        .height(11)
        .span(24)
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(shown.HeatmapCellLayout.LE))
        .y_axis(heatmap.YAxisConfig().unit("bytes").axis_label("cache size"))
        .cell_values(heatmap.CellValues().unit("percentunit").decimals(1))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heat.HeatmapColorMode.SCHEME)
            .scheme("Inferno")
            .scale(heat.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
        )
        .with_target(
            query(
                f"sum by (size) ({padded(misses)}) / on () group_left () ({accesses} > 0)",
                "{{size}}",
            )
        )
    )


def phase_timeline() -> statetimeline.Panel:
    """Which phase ran when."""
    return (
        statetimeline.Panel()
        .title("Phases")
        .description(
            "The phase of the last window, as of each scrape. Light phases are one: other."
        )
        .datasource(SOURCE)
        .height(8)
        .span(24)
        .row_height(0.8)
        .merge_values(True)
        .show_value(shown.VisibilityMode.NEVER)
        .fill_opacity(80)
        .thresholds(
            dashboard.ThresholdsConfig()
            .mode(model.ThresholdsMode.ABSOLUTE)
            .steps([model.Threshold(value=None, color="transparent"), model.Threshold(1, "blue")])
        )
        .with_target(query(f"memsampd_phase_active{{{TARGET}}}", "{{pid}} phase {{phase}}"))
    )


def transformation(id: str, **options: Any) -> model.DataTransformerConfig:
    """One step from queries to what is shown."""
    return model.DataTransformerConfig(id_val=id, options=options)


def phase_curve() -> barchart.Panel:
    """The curve of a phase with its bounds, a panel for each phase chosen."""
    chosen = f'{{{TARGET}, phase=~"$phase", policy=~"$policy"}}'
    panel = (
        barchart.Panel()
        .title("Miss ratio of phase $phase")
        .description(
            "Misses per access by cache size: estimate, lower and upper bound. Where the bounds "
            "lie apart, bursts are too few, or too short for a cache of that size."
        )
        .datasource(SOURCE)
        .unit("percentunit")
        .min(0)
        .height(9)
        .span(12)
        .repeat("phase")
        .repeat_direction("h")
        .x_field("size_bytes")
        .with_override(
            model.MatcherConfig(id_val="byName", options="size_bytes"),
            [model.DynamicConfigValue(id_val="unit", value="bytes")],
        )
    )
    names = {}
    for ref, name in (("A", ""), ("B", "low_"), ("C", "high_")):
        expression = f"max by (size_bytes) (memsampd_phase_miss_{name}ratio{chosen})"
        panel = panel.with_target(instant(expression, ref=ref))
        names[f"Value #{ref}"] = {"": "estimate", "low_": "low", "high_": "high"}[name]
    return (
        panel.with_transformation(transformation("joinByField", byField="size_bytes", mode="outer"))
        .with_transformation(
            transformation(
                "convertFieldType",
                conversions=[{"targetField": "size_bytes", "destinationType": "number"}],
            )
        )
        .with_transformation(
            transformation("sortBy", sort=[{"field": "size_bytes", "desc": False}])
        )
        .with_transformation(
            transformation(
                "organize",
                excludeByName={"Time": True, "Time 1": True, "Time 2": True, "Time 3": True},
                renameByName=names,
            )
        )
    )


def phase_table() -> table.Panel:
    """Phases with their figures."""
    columns = {
        "memsampd_phase_weight_ratio": "share of accesses",
        "memsampd_phase_cpu_seconds": "CPU s",
        "memsampd_phase_bursts": "bursts",
        "memsampd_phase_accesses_per_cpu_second": "accesses / CPU s",
        "memsampd_phase_write_ratio": "stores",
        "memsampd_phase_memory_bytes_per_cpu_second": "memory B / CPU s",
    }
    panel = table.Panel().title("Phases in figures").datasource(SOURCE).height(9).span(24)
    names = {}
    for number, (metric, name) in enumerate(columns.items()):
        ref = chr(ord("A") + number)
        expression = f"max by (command, pid, phase) ({metric}{{{TARGET}}})"
        panel = panel.with_target(instant(expression, ref=ref))
        names[f"Value #{ref}"] = name
    return panel.with_transformation(transformation("merge")).with_transformation(
        transformation("organize", excludeByName={"Time": True}, renameByName=names)
    )


def memory_panels() -> list[timeseries.Panel]:
    """Traffic against the peak."""
    peak = f'memsampd_memory_peak_bytes_per_second{{{NODE}, threads="all", operation="read"}}'
    return [
        lines(
            "Memory traffic against the measured peak",
            "Bps",
            [
                (
                    f"sum(rate(memsampd_memory_fetched_bytes_total{{{TARGET}}}[$__rate_interval]))",
                    "lines fetched",
                ),
                (
                    "sum(rate(memsampd_memory_written_back_bytes_total"
                    f"{{{TARGET}}}[$__rate_interval]))",
                    "lines written back",
                ),
                (f"max({peak})", "peak of loads"),
            ],
            "Estimated from the curve at the largest cache: no prefetches. The peak is there after "
            "memsampd machine --measure.",
        ),
        lines(
            "Share of the peak, by phase",
            "percentunit",
            [(f"memsampd_phase_memory_peak_ratio{{{TARGET}}}", "phase {{phase}}")],
            "What a phase draws in a second of CPU time, as a share of what one thread can draw.",
        ),
        lines(
            "Misses a second that one more MiB would save",
            "short",
            [
                (
                    f"memsampd_mebibyte_gain_ratio{{{TARGET}}} * on (instance, pid) group_left () "
                    f"rate(memsampd_accesses_total{{{TARGET}}}[$__rate_interval])",
                    "{{level}}",
                )
            ],
            "The slope of the curve at each cache of this machine, times the access rate.",
        ),
        lines(
            "Bytes fetched by each cache, per CPU second",
            "binBps",
            [(f"memsampd_fill_bytes_per_cpu_second{{{TARGET}}}", "{{level}}")],
            "Of the whole run: access rate, miss ratio and line size multiplied.",
        ),
    ]


def doubt_panels() -> list[timeseries.Panel]:
    """What is not known, and what it cost to know the rest."""
    cpu = f"rate(memsampd_target_cpu_seconds_total{{{TARGET}}}[$__rate_interval])"
    taken = " + ".join(
        f"rate(memsampd_target_{kind}_seconds_total{{{TARGET}}}[$__rate_interval])"
        for kind in ("hold", "hit", "taken_cpu", "sampling")
    )
    return [
        lines(
            "What is not known",
            "percentunit",
            [
                (f"memsampd_unknown_cpu_ratio{{{TARGET}}}", "CPU time in unseen code"),
                (f"memsampd_band_ratio{{{TARGET}}}", "width of the bounds at {{level}}"),
                (f"1 - memsampd_access_rate_known_ratio{{{TARGET}}}", "access rate modelled"),
                (
                    f"max(memsampd_phase_access_rate_spread_ratio{{{TARGET}}})",
                    "error of a phase's access rate",
                ),
            ],
            "Near 0 all is known. Unseen code has no curve; wide bounds make it a guess.",
        ),
        lines(
            "Bursts, and why others failed",
            "short",
            [
                (
                    f"sum by (end) (rate(memsampd_bursts_total{{{TARGET}}}[$__rate_interval]))",
                    "ended: {{end}}",
                ),
                (
                    "sum by (reason) (rate(memsampd_capture_errors_total"
                    f"{{{TARGET}}}[$__rate_interval])) or vector(0)",
                    "failed: {{reason}}",
                ),
                (
                    f"count by (reason) (memsampd_no_bursts{{{TARGET}}}) or vector(0)",
                    "none possible: {{reason}}",
                ),
            ],
            "Bursts a second by what ended them, and attempts that yielded none.",
        ),
        lines(
            "What memsampd takes from the target",
            "percentunit",
            [
                (f"({taken}) / ({cpu} > 0)", "taken"),
                (f"memsampd_overhead_spent_ratio{{{TARGET}}}", "by bursts since the attach"),
                (f"memsampd_overhead_budget_ratio{{{TARGET}}}", "budget of bursts"),
            ],
            "Holds, breakpoints, branch samples and CPU time taken, as a share of its CPU time.",
        ),
        lines(
            "What memsampd uses itself",
            "percentunit",
            [
                (
                    f"rate(memsampd_own_cpu_seconds_total{{{TARGET}}}[$__rate_interval])",
                    "CPUs in use",
                ),
                (f"memsampd_own_cpu_limit_ratio{{{TARGET}}} * {cpu}", "limit"),
            ],
            "CPU time of memsampd's processes for this target, and what it allows itself.",
        ),
    ]


def process_board() -> dashboard.Dashboard:
    """Everything of one process."""
    built = (
        board(
            "memsampd: a process",
            "memsampd-process",
            "Phases, miss-ratio curves, memory traffic and what is not known of a process.",
        )
        .with_variable(
            variable(
                "command",
                "command",
                f"label_values(memsampd_target_up{{{NODE}}}, command)",
                several=False,
            )
        )
        .with_variable(
            variable(
                "pid",
                "pid",
                f'label_values(memsampd_target_up{{{NODE}, command=~"$command"}}, pid)',
                several=False,
            )
        )
        .with_variable(
            variable(
                "policy",
                "policy",
                f"label_values(memsampd_miss_ratio{{{TARGET}}}, policy)",
                several=False,
            )
        )
        .with_variable(
            variable(
                "phase",
                "phase",
                f"label_values(memsampd_phase_miss_ratio{{{TARGET}}}, phase)",
                several=True,
            )
        )
    )
    cpu = f"sum(rate(memsampd_target_cpu_seconds_total{{{TARGET}}}[$__rate_interval]))"
    accesses = f"sum(rate(memsampd_accesses_total{{{TARGET}}}[$__rate_interval]))"
    panels = [
        figure("CPUs in use", "short", cpu, "CPU time a second of the process."),
        figure("Accesses a second", "short", accesses, "Estimated."),
        figure(
            "Memory traffic",
            "Bps",
            f"sum(rate(memsampd_memory_fetched_bytes_total{{{TARGET}}}[$__rate_interval])) + "
            f"sum(rate(memsampd_memory_written_back_bytes_total{{{TARGET}}}[$__rate_interval]))",
            "Lines fetched and written back.",
        ),
        figure("Phases", "short", f"sum(memsampd_phases{{{TARGET}}})", "Told apart so far."),
        figure(
            "Unseen code",
            "percentunit",
            f"max(memsampd_unknown_cpu_ratio{{{TARGET}}})",
            "Share of the CPU time in code that no burst has seen.",
        ),
        figure(
            "Predictions right",
            "percentunit",
            f"min(memsampd_prediction_accuracy_ratio{{{TARGET}}})",
            "Share of the windows whose phase was predicted.",
        ),
        heat_map(),
        phase_timeline(),
        *memory_panels(),
        *doubt_panels(),
        phase_table(),
        phase_curve(),
    ]
    for panel in panels:
        built = built.with_panel(panel)
    return built


# -- all machines ----------------------------------------------------------------------------------


def machines_board() -> dashboard.Dashboard:
    """Who draws what on which machine."""
    built = board(
        "memsampd: machines",
        "memsampd-machines",
        "Top processes, memory bandwidth, overhead and alerts of all machines.",
    )
    who = "{{command}} {{pid}} on {{instance}}"
    panels = [
        figure(
            "Targets",
            "short",
            f"sum(memsampd_target_up{{{NODE}}}) or vector(0)",
            "Observed now.",
            span=6,
        ),
        figure(
            "Machines without an answer",
            "short",
            'count(up{job="memsampd"} == 0) or vector(0)',
            "Prometheus cannot scrape memsampd there.",
            span=6,
        ),
        figure(
            "Targets without bursts",
            "short",
            f"count(memsampd_no_bursts{{{NODE}}}) or vector(0)",
            "Their accesses are unknown.",
            span=6,
        ),
        figure(
            "Alerts",
            "short",
            'count(ALERTS{alertname=~"Memsampd.*", alertstate="firing"}) or vector(0)',
            "Firing now.",
            span=6,
        ),
        bars(
            "Most memory traffic",
            "Bps",
            f"topk(10, target:memsampd_memory_bytes:rate2m{{{NODE}}})",
            who,
            "Lines fetched and written back.",
        ),
        bars(
            "Most to gain from one more MiB of cache",
            "short",
            f'topk(10, target:memsampd_mebibyte_saved_misses:rate5m{{{NODE}, level="L3"}})',
            who,
            "Misses a second that one more MiB of L3 would save.",
        ),
        bars(
            "Least known",
            "percentunit",
            f"topk(10, memsampd_unknown_cpu_ratio{{{NODE}}})",
            who,
            "Share of CPU time in code that no burst has seen.",
        ),
        lines(
            "Memory: share of the measured peak",
            "percentunit",
            [(f"instance:memsampd_memory_peak:ratio_rate2m{{{NODE}}}", "{{instance}}")],
            "All observed processes together; absent where no peak was measured.",
        ),
        lines(
            "Memory traffic",
            "Bps",
            [(f"instance:memsampd_memory_bytes:rate2m{{{NODE}}}", "{{instance}}")],
            "All observed processes together.",
        ),
        lines(
            "CPUs that memsampd uses",
            "short",
            [(f"instance:memsampd_own_cpu_seconds:rate5m{{{NODE}}}", "{{instance}}")],
            "For all targets of a machine.",
        ),
        lines(
            "Processes that daemons observe",
            "short",
            [
                (f"sum by (state) (memsampd_node_targets{{{NODE}}})", "{{state}}"),
                (f"sum(memsampd_node_left_out{{{NODE}}})", "no room"),
            ],
            "By how they fare: bursts are taken of those that are profiled.",
        ),
        lines(
            "Daemons against their budgets",
            "percentunit",
            [
                (
                    f"rate(memsampd_node_own_cpu_seconds_total{{{NODE}}}[$__rate_interval])"
                    f" / memsampd_node_own_cpu_budget_ratio{{{NODE}}}",
                    "CPU time, {{instance}}",
                ),
                (
                    f"rate(memsampd_node_hold_seconds_total{{{NODE}}}[$__rate_interval])"
                    f" / memsampd_node_hold_budget_ratio{{{NODE}}}",
                    "holds, {{instance}}",
                ),
            ],
            "100 % is all that a daemon may use.",
        ),
        lines(
            "What memsampd takes from its targets",
            "percentunit",
            [(f"max by (instance) (target:memsampd_taken:ratio_rate5m{{{NODE}}})", "{{instance}}")],
            "The worst share of a target's CPU time.",
        ),
        lines(
            "Knees, of the last day",
            "short",
            [("command:memsampd_knee_sizes:increase1d", "{{command}}")],
            "How many sizes of the curve lie below the one that saves half of the misses: a step "
            "is about a factor of two.",
        ),
        lines(
            "Phase changes",
            "percentunit",
            [(f"topk(10, target:memsampd_phase_changes:ratio10m{{{NODE}}})", who)],
            "Share of the scrapes at which another phase ran than at the one before.",
        ),
    ]
    for panel in panels:
        built = built.with_panel(panel)
    return built


def dashboards() -> dict[str, str]:
    """Return the JSON of every dashboard by file name."""
    return {
        f"{name}.json": JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"
        for name, built in (
            ("memsampd-process", process_board()),
            ("memsampd-machines", machines_board()),
        )
    }


if __name__ == "__main__":
    for name, text in dashboards().items():
        (HERE / name).write_text(text)
