"""What a study's storage and ledger hold, as plain values and as a table. Starts nothing, writes nothing."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.place import Place
from gridlaw.pipelines.tune.plan import TunePlan, trial_name
from gridlaw.pipelines.tune.results import read_results, summary
from gridlaw.pipelines.tune.submission import refuse_study_drift, storage_of
from gridlaw.platform.store.lease import look
from gridlaw.platform.tuning.space import show
from gridlaw.platform.tuning.storage import check_storage
from gridlaw.platform.tuning.study import open_study


def status_of(plan: TunePlan) -> dict[str, Any]:
    """Trials, front, importances, and who drives the study now."""
    url = storage_of(plan)
    check_storage(url)
    store = Place.of(plan.base).store(create=False)
    refuse_study_drift(plan, Place.of(plan.base).ledger(plan.base, store))
    lease = look(store, plan.spec.name)
    results = read_results(plan, open_study(url, plan.declaration, create=False))
    return {
        **results.to_dict(),
        "driver": str(lease.owner) if lease is not None and not lease.stale else None,
        "summary": summary(results),
    }


def print_status(shown: dict[str, Any]) -> None:
    """The status on standard output."""
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    console = results_console()
    console.print(f"{shown['experiment']}: study {shown['study']} in {shown['storage']}", highlight=False)
    for sentence in shown["summary"]:
        console.print(sentence, highlight=False)
    console.print(f"driver: {shown['driver']}" if shown["driver"] else "no driver is running", highlight=False)
    if not shown["trials"]:
        return
    parameters = list(dict.fromkeys(name for trial in shown["trials"] for name in trial["params"]))
    table = Table()
    for name in ("trial", "state", *shown["objectives"], *parameters, "reason"):
        table.add_column(name, justify="left" if name in ("state", "reason") else "right")
    for trial in shown["trials"]:
        mark = " *" if trial["number"] in shown["front"] else "" if trial["feasible"] else " (infeasible)"
        values = [f"{trial['values'][name]:.5g}" if name in trial["values"] else "" for name in shown["objectives"]]
        settings = [show(trial["params"][name]) if name in trial["params"] else "" for name in parameters]
        table.add_row(trial_name(trial["number"]), trial["state"] + mark, *values, *settings, trial["reason"])
    console.print(table)
    console.print("* on the front" if len(shown["objectives"]) > 1 else "* the best")
