"""Machine load for a run's "System metrics" tab: MLflow's own collectors, sampled against the optimizer's step.

MLflow's own monitor counts samples as steps and starts again at 0 in every process; the journal's steps are the
optimizer's, so a resumed run goes on where it stood and load can be laid beside the loss.
"""

from __future__ import annotations

import logging
from typing import Any

PREFIX = "system/"  # MLflow's page sorts metrics with this prefix into the tab
log = logging.getLogger(__name__)


class SystemMetrics:
    """Samples the machine; never raises. Making one imports MLflow (a second), so make it in a background thread."""

    def __init__(self) -> None:
        self._monitors: list[Any] = []
        try:
            from gridlaw.platform.ledger.tracking import prepare_environment, quiet

            prepare_environment()
            quiet()
            from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
            from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
            from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
            from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

            self._monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
            import psutil

            psutil.cpu_percent()  # the first call of a process has nothing to compare with and says 0
        except Exception as error:
            log.debug("no system metrics: %s", error)
            return
        try:
            self._monitors.append(GPUMonitor())
        except Exception as error:  # no NVIDIA GPU, or no nvidia-ml-py
            log.debug("no GPU metrics: %s", error)

    def sample(self) -> dict[str, float]:
        """One reading of every collector, keys with the prefix; empty if nothing can be read."""
        values: dict[str, float] = {}
        for monitor in self._monitors:
            try:
                monitor.collect_metrics()
                values.update({PREFIX + key: float(value) for key, value in monitor.aggregate_metrics().items()})
                monitor.clear_metrics()
            except Exception as error:
                log.debug("a system metric cannot be read: %s", error)
        return values
