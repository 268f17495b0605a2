"""Lanes of one socket: in order within a lane, lanes in parallel. Asyncio thread only."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """The work of one frame, in its position in the lane."""

    async def run(self) -> None:
        """Run the job up to its last event."""
        ...


JobT = TypeVar("JobT", bound=Job)


class Lanes(Generic[JobT]):
    """Runs one worker task per lane that has jobs."""

    def __init__(self, tasks: asyncio.TaskGroup, *, max_lanes: int, max_jobs: int) -> None:
        self._tasks = tasks
        self._max_lanes = max_lanes
        self._max_jobs = max_jobs
        self._jobs: dict[str | None, deque[JobT]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    def has_room(self, lane: str | None) -> bool:
        """Whether `put` may be called: neither too many lanes nor too many jobs in this one."""
        jobs = self._jobs.get(lane)
        return len(self._jobs) < self._max_lanes if jobs is None else len(jobs) < self._max_jobs

    def put(self, lane: str | None, job: JobT) -> None:
        """Append a job to its lane, which has room."""
        jobs = self._jobs.get(lane)
        if jobs is not None:
            jobs.append(job)
            return
        self._jobs[lane] = jobs = deque([job])
        worker = self._tasks.create_task(self._work(lane, jobs))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    def jobs(self, lane: str | None) -> Iterator[JobT]:
        """Jobs of a lane that have not ended, oldest first."""
        yield from self._jobs.get(lane, ())

    def all_jobs(self) -> Iterator[JobT]:
        """Jobs of all lanes that have not ended."""
        for jobs in self._jobs.values():
            yield from jobs

    def cancel(self) -> None:
        """Cancel the workers; `all_jobs` then yields the unfinished jobs."""
        for worker in self._workers:
            worker.cancel()

    async def idle(self) -> None:
        """Wait until every lane is empty."""
        while self._workers:
            await asyncio.wait(self._workers)

    async def _work(self, lane: str | None, jobs: deque[JobT]) -> None:
        # the running job stays at the head until it ends, so that `jobs` includes it
        while jobs:
            await jobs[0].run()
            jobs.popleft()
        del self._jobs[lane]
