"""Which job is meant by a name. How a real job server answers: tests/pipelines/submit (in make test-slow)."""

from __future__ import annotations

import pytest

from gridlaw.platform.errors import BadInput
from gridlaw.platform.jobs import GRID_KEY, Job, JobServer


class Known(JobServer):
    """A job server that knows these jobs, newest first."""

    def __init__(self, *jobs: Job) -> None:
        self.address, self._jobs = "http://head:8265", list(jobs)

    def jobs(self) -> list[Job]:
        return self._jobs


def job(job_id: str, status: str, grid: str = "small") -> Job:
    return Job(job_id=job_id, status=status, entrypoint="", metadata={GRID_KEY: grid} if grid else {})


def test_a_name_is_the_job_under_way_else_the_newest_and_an_id_is_that_job() -> None:
    refused, runs, old = job("third", "FAILED"), job("second", "RUNNING"), job("first", "SUCCEEDED")
    other = job("fourth", "RUNNING", "other")
    server = Known(other, refused, runs, old)
    assert server.find("small") is runs, "a second submission was refused, and the first goes on"
    assert Known(other, refused, old).find("small") is refused
    assert [server.find(each.job_id) for each in (other, refused, runs, old)] == [other, refused, runs, old]
    named_like_an_id = job("fifth", "RUNNING", "first")
    assert Known(named_like_an_id, old).find("first") is old


def test_a_job_that_is_not_there_is_told_with_those_that_are() -> None:
    foreign = job("somebody-s", "RUNNING", "")
    with pytest.raises(BadInput) as refused:
        Known(job("second", "RUNNING"), job("first", "SUCCEEDED"), foreign).find("smell")
    for part in ("'smell'", "http://head:8265", "small, second, first"):
        assert part in str(refused.value)
    assert "somebody-s" not in str(refused.value)
    with pytest.raises(BadInput, match="http://head:8265 knows no gridlaw job"):
        Known(foreign).find("small")


@pytest.mark.parametrize("name", ["", "somebody-s"])
def test_jobs_of_others_are_never_meant(name: str) -> None:
    """``gridlaw stop "$NAME"`` with an empty variable must not stop what somebody else runs."""
    server = Known(job("somebody-s", "RUNNING", ""), job("first", "RUNNING"))
    assert server.look(name) is None
    with pytest.raises(BadInput, match="allowed: a grid or a job id at http://head:8265: small, first"):
        server.find(name)
