"""Stage functions over a store without plain files: what they read is fetched, what they write is kept in step with
it.

A task names things by their full addresses in the store (``s3://…/attempts/RUN``), a stage function works on folders of
its machine. Between the two, for one task: its own folder is made empty and filled with what an earlier attempt, on
whatever node, left in the store; all else that the task names is fetched into this machine's cache; while the stage
runs, threads put what is new in the folder into the store, tell progress, and look whether it is asked to stop. Stages
themselves know nothing of it, and where the store is a folder there is none of it.

What a killed worker had not put up yet is done again, from the newest checkpoint in the store, to the same bits. Two
workers on one run, which a cluster that lost sight of a node may have for a while, write the same values.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gridlaw.modules.data.prepare import MANIFEST
from gridlaw.modules.training import checkpoint_files
from gridlaw.platform.errors import InUse, Surroundings
from gridlaw.platform.ledger.segments import JournalUploader, progress_name
from gridlaw.platform.ledger.sender import JOURNAL_FILE
from gridlaw.platform.progress import FILE as PROGRESS_FILE
from gridlaw.platform.store.base import STOP_FILE, Store
from gridlaw.platform.store.cache import Cache
from gridlaw.platform.store.lease import Lease
from gridlaw.platform.store.mirror import Mirror

Stage = Callable[[dict[str, Any]], dict[str, Any]]

LOOK_SECONDS = 1.0
BRING_SECONDS = 3.0
WAIT_FOR_OTHERS_SECONDS = 2.0


def run_remotely(stage: str, function: Stage, task: dict[str, Any], store: Store) -> dict[str, Any]:
    """Call a stage function whose task names places in ``store``; the result names them again."""
    if stage == "prepare":
        return _prepare_once(function, task, store)
    cache = Cache(store)
    places = Places(store, cache)
    job = task.get("job")
    own = _name((job or task).get("folder") or task["work"], store)
    with ExitStack() as stack:
        scratch = stack.enter_context(cache.work(own))
        courier = _Courier(store, own)
        run = courier.mirror(own, scratch / "run")
        places.add(own, run.folder)
        if job is None:
            run.pull(lambda each: True)
        else:
            resumed = _pull_attempt(run, job)
            if job["start_checkpoint"]:
                start = _name(job["start_checkpoint"], store)
                places.add(start, _pull_start(store, start, scratch / "start", needed=not resumed))
            stop = _name(job["stop_file"], store)
            places.add(stop, scratch / STOP_FILE)
            courier.stops = {stop: scratch / STOP_FILE, f"{own}/{STOP_FILE}": run.folder / STOP_FILE}
        if stage == "examples":  # what it makes is shared by content, and not its own
            shared = _name(task["inputs"]["examples"], store)
            made = courier.mirror(shared, scratch / "examples")
            made.pull(lambda each: True)
            places.add(shared, made.folder)
        local = places.here(task)
        with courier.at_work():
            result = function(local)
    shown: dict[str, Any] = places.there(result)
    if stage == "examples":
        shown["folder"] = shared.rpartition("/")[2]
    return shown


class Places:
    """Addresses in the store, and where they are on this machine. What is not told by ``add`` is fetched when met."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self._store, self._cache = store, cache
        self.local: dict[str, Path] = {}

    def add(self, name: str, path: Path) -> None:
        """A name of the store lies, or will lie, at ``path``."""
        self.local[name] = path

    def here(self, value: Any) -> Any:
        """``value`` with every address in it as a path of this machine."""
        if isinstance(value, dict):
            return {key: self.here(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.here(each) for each in value]
        if not isinstance(value, str) or not value.startswith(f"{self._store.address}/"):
            return value
        name = _name(value, self._store)
        if name not in self.local:
            self.local[name] = self._cache.fetch(name)
        return str(self.local[name])

    def there(self, value: Any) -> Any:
        """``value`` with every path of ``here`` as an address again, inside sentences, too."""
        text = json.dumps(value)
        for name, path in sorted(self.local.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(json.dumps(str(path))[1:-1], json.dumps(self._store.url(name))[1:-1])
        return json.loads(text)


class _Courier:
    """Between one task's folders and the store while the task runs. stops: object that asks to stop → its file here."""

    def __init__(self, store: Store, own: str) -> None:
        self._store, self._run_id = store, own.rpartition("/")[2]
        self._mirrors: list[Mirror] = []
        self._journal: JournalUploader | None = None
        self.stops: dict[str, Path] = {}
        self._progress = b""
        self._over = threading.Event()

    def mirror(self, name: str, folder: Path) -> Mirror:
        """Keep a folder in step, made empty here; the first is the run's own, with its journal and progress."""
        folder.mkdir()
        if self._journal is None:
            self._journal = JournalUploader(self._store, self._run_id, folder)
        self._mirrors.append(Mirror(self._store, name, folder, left_out=_goes_another_way))
        return self._mirrors[-1]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, threads bring what is new. Leaving it, the rest goes up; after a success, or ``Surroundings``."""
        threads = [
            threading.Thread(target=self._repeat, args=(call, seconds), name=f"gridlaw-{call.__name__}", daemon=True)
            for call, seconds in ((self._look_around, LOOK_SECONDS), (self._bring, BRING_SECONDS))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException:
            self._end(threads)
            with suppress(Surroundings):  # the reason is told; what could not go up is done again
                self._bring()
            raise
        self._end(threads)
        self._bring()

    def _end(self, threads: list[threading.Thread]) -> None:
        self._over.set()
        for thread in threads:
            thread.join()

    def _repeat(self, call: Callable[[], None], seconds: float) -> None:
        while not self._over.wait(seconds):
            with suppress(Surroundings):  # an outage: the next time makes up for it
                call()

    def _look_around(self) -> None:
        for name, path in self.stops.items():
            if not path.exists() and self._store.exists(name):
                path.touch()
        with suppress(FileNotFoundError):
            progress = (self._mirrors[0].folder / PROGRESS_FILE).read_bytes()
            if progress != self._progress:
                self._store.write_bytes(progress_name(self._run_id), progress)
                self._progress = progress

    def _bring(self) -> None:
        """Rows before the checkpoints that come after them, so that whoever goes on from one needs no row before it."""
        assert self._journal is not None, "a run's own folder comes first"
        found = [mirror.look() for mirror in self._mirrors]
        self._journal.upload()
        for mirror, files in zip(self._mirrors, found, strict=True):
            mirror.sweep(files)


def _pull_attempt(mirror: Mirror, job: dict[str, Any]) -> bool:
    """What a fit goes on from: counters, results, the newest whole checkpoint; True if there is a checkpoint.

    A damaged one is fetched, too: the fit tells of it. Of a job that was finished before, what its result speaks of.
    """
    names = mirror.pull(lambda each: "/" not in each and not _is_checkpoint(each))
    if f"result-{job['until_step']:09d}.json" in names:
        mirror.pull(lambda each: "/" in each)
    steps = checkpoint_files.complete_steps(names)
    for step in reversed([each for each in steps if each <= job["until_step"]]):
        if _fetch_checkpoint(mirror, step):
            kept = {step, *job["keep_steps"]}
            mirror.store.delete_objects(
                f"{mirror.name}/{checkpoint_files.checkpoint_name(each)}{end}"
                for each in steps
                if each < step and each not in kept
                for end in ("", checkpoint_files.SIDECAR)
            )
            return True
    return False


def _pull_start(store: Store, start: str, folder: Path, *, needed: bool) -> Path:
    """The trunk's checkpoint that a decay starts from, or those before it until one is whole; and its micro-batch.

    needed: without it (the decay has a checkpoint of its own) the checkpoint stays where it is.
    """
    trunk, _, file = start.rpartition("/")
    mirror = Mirror(store, trunk, folder, left_out=_goes_another_way)
    names = mirror.pull(lambda each: each == checkpoint_files.MICRO_BATCH_FILE)
    wanted = checkpoint_files.step_of(Path(file))
    assert wanted is not None, f"{start} is no checkpoint"
    for step in reversed([each for each in checkpoint_files.complete_steps(names) if each <= wanted]):
        if not needed or _fetch_checkpoint(mirror, step):
            break
    return folder / file


def _fetch_checkpoint(mirror: Mirror, step: int) -> bool:
    """Fetch a checkpoint and its sidecar; True if it is whole."""
    name = checkpoint_files.checkpoint_name(step)
    try:
        mirror.fetch(name + checkpoint_files.SIDECAR)
        path = mirror.fetch(name)
    except FileNotFoundError:
        return False  # pruned meanwhile
    return checkpoint_files.fault(path) is None


def _is_checkpoint(name: str) -> bool:
    return checkpoint_files.step_of(Path(name.removesuffix(checkpoint_files.SIDECAR))) is not None


def _goes_another_way(name: str) -> bool:
    """Journals go in pieces, progress by itself, and what asks to stop is looked for."""
    return name.startswith(JOURNAL_FILE) or name in (PROGRESS_FILE, STOP_FILE)


def _prepare_once(function: Stage, task: dict[str, Any], store: Store) -> dict[str, Any]:
    """Prepared data: whoever holds their lease makes them, others wait; the manifest goes up last.

    The folder outlives a killed process, whose successor on this machine goes on there.
    """
    address, name = task["folder"], _name(task["folder"], store)
    cache = Cache(store)
    folder = cache.folder(name)
    while not store.exists(f"{name}/{MANIFEST}"):
        try:
            with Lease.acquire(store, name):
                if not store.exists(f"{name}/{MANIFEST}"):
                    function({**task, "folder": str(folder)})
                    files = sorted(path for path in folder.rglob("*") if path.is_file())
                    for path in sorted(files, key=lambda path: path.name == MANIFEST):
                        store.upload(path, f"{name}/{path.relative_to(folder).as_posix()}")
                    cache.adopt(name, folder)
        except InUse:
            time.sleep(WAIT_FOR_OTHERS_SECONDS)
    manifest = json.loads(store.read_bytes(f"{name}/{MANIFEST}"))
    return {"folder": address, "counts": manifest["counts"], "fingerprint": manifest["fingerprint"]}


def _name(address: str, store: Store) -> str:
    inside = address.startswith(f"{store.address}/")
    assert inside, f"{address} is not in {store.address}"
    return address.removeprefix(f"{store.address}/")
