"""FilterFleet: serves the filters of a configuration to Envoy, in this process."""

from __future__ import annotations

from egressproxy.ext_proc_server.listening import bind_filters
from egressproxy.processes.workers.filter_worker import FilterWorker
from egressproxy.processes.workers.fleet import process_limits
from egressproxy.processes.workers.worker import InProcess, Worker
from egressproxy.run_options import FilterListener, RunOptions
from egressproxy.telemetry.metrics import Metrics


class FilterFleet(InProcess):
    """See `fleet.Fleet`."""

    def __init__(self, options: RunOptions, at: FilterListener, metrics: Metrics) -> None:
        super().__init__(options, metrics)
        self._at = at

    def _made(self) -> Worker:
        options = self._options
        return FilterWorker(
            self._at, bind_filters, options.access_log, self._metrics, zone=options.zone, limits=process_limits(options)
        )
