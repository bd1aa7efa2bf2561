"""Saved views of an experiment's page in MLflow: a filter with columns or charts under a name, opened by an address.

MLflow keeps a view as a tag of the experiment, ``mlflow.sharedViewState.KEY``: JSON with a name, a time and the state
of its page as text, as its own "Save & share view" writes it. The names of states are those of MLflow 3.17's page
(``ExperimentPageUIState``, ``RunsChartsLineCardConfig``), which fills in what is left out; the browser tests open every
view. Views are listed in the menu beside the experiment's name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import PREFIX

TAG = "mlflow.sharedViewState."
POINTS = "gridlaw-points"
"""Key of the view that a person sees first."""
_FILTERS = {"startTime": "ALL", "lifecycleFilter": "Active", "modelVersionFilter": "All Runs", "datasetsFilter": []}


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """A metric, on a logarithmic axis, over another one; one line a run."""

    title: str
    metric: str
    against: str


@dataclass(frozen=True, kw_only=True)
class View:
    """One view. key: in its address. runs: MLflow's filter. columns: see ``tag_column`` and ``metric_column``.

    With charts the page shows them beside the list of runs. hidden: no line is drawn until a run's eye is clicked.
    """

    key: str
    name: str
    runs: str
    columns: tuple[str, ...] = ()
    charts: tuple[LineChart, ...] = ()
    hidden: bool = False

    def address(self, experiment_id: str) -> str:
        """From ``#`` on, to be put behind a server's address; links on MLflow's own pages need nothing before it."""
        return experiment_page(experiment_id, self.key, charts=bool(self.charts))

    def state(self) -> dict[str, Any]:
        """The page's state, in MLflow's names."""
        found: dict[str, Any] = _FILTERS | {
            "searchFilter": self.runs,
            "orderByKey": tag_column("name"),  # an order other than by time also keeps child runs out of their parents
            "orderByAsc": True,
            "selectedColumns": list(self.columns),
            "runsHiddenMode": "HIDE_ALL" if self.hidden else "SHOW_ALL",
        }
        if self.charts:
            section = f"{self.key}-charts"
            # MLflow takes the last two sections for its own; they are there and folded.
            own = [_section(name, name, shown=False) for name in ("Model metrics", "System metrics")]
            found |= {
                "compareRunCharts": [
                    _line(chart, f"{section}-{place}", section) for place, chart in enumerate(self.charts)
                ],
                "compareRunSections": [_section(section, self.name, shown=True), *own],
                "isAccordionReordered": True,
            }
        return found


def experiment_page(experiment_id: str, view: str = "", *, charts: bool = False) -> str:
    """The runs of an experiment in MLflow's model-training mode, from ``#`` on; view: a saved one's key."""
    asked = {"workflowType": "machine_learning"}
    if charts:
        asked["compareRunsMode"] = "CHART"
    if view:
        asked["viewStateShareKey"] = view
    return f"#/experiments/{experiment_id}/runs?{urlencode(asked)}"


def tag_column(name: str) -> str:
    """A column with one of our tags, without its prefix."""
    return f"tags.`{PREFIX}{name}`"


def metric_column(name: str) -> str:
    return f"metrics.`{name}`"


def param_column(name: str) -> str:
    return f"params.`{name}`"


def _section(uuid: str, name: str, *, shown: bool) -> dict[str, Any]:
    section = {"uuid": uuid, "name": name, "display": shown, "isReordered": False, "deleted": False}
    return section | {"isGenerated": not shown} | ({"columns": 1, "cardHeight": 360} if shown else {})


def _line(chart: LineChart, uuid: str, section: str) -> dict[str, Any]:
    return {
        "type": "LINE", "uuid": uuid, "metricSectionId": section, "deleted": False, "isGenerated": False,
        "displayName": chart.title, "runsCountToCompare": 100, "metricKey": chart.metric,
        "selectedMetricKeys": [chart.metric], "xAxisKey": "metric", "selectedXAxisMetricKey": chart.against,
        "yAxisKey": "metric", "yAxisExpressions": [], "xAxisScaleType": "linear", "scaleType": "log",
        "lineSmoothness": 0,
        "useGlobalXaxisKey": False, "useGlobalLineSmoothing": False, "ignoreOutliers": False, "displayPoints": False,
    }  # fmt: skip


def save_views(ledger: Ledger, views: Sequence[View]) -> None:
    """Keep views with the experiment; those that are there as they should be are not written again."""
    experiment = ledger.tracking.call("read the experiment", lambda client: client.get_experiment(ledger.experiment_id))
    for view in views:
        state = json.dumps(view.state(), separators=(",", ":"))
        if json.loads(experiment.tags.get(TAG + view.key, "{}")).get("state") != state:
            kept = json.dumps({"name": view.name, "createdAt": int(1000 * time.time()), "state": state})
            assert len(kept) <= 5000, f"MLflow's tags hold 5,000 characters, and view {view.key} has {len(kept)}"
            _keep(ledger, TAG + view.key, kept)


def _keep(ledger: Ledger, key: str, text: str) -> None:
    ledger.tracking.call("keep a view", lambda client: client.set_experiment_tag(ledger.experiment_id, key, text))
