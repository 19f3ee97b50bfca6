"""One run: the chosen scenarios, one after another, each bounded in time."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from benchmarks.contenders.base import Contender
from benchmarks.figures import Figure
from benchmarks.goals import check_goals
from benchmarks.picture import write_picture
from benchmarks.readme import write_readme
from benchmarks.report import Run, write_document
from benchmarks.rounds import Result, run_rounds
from benchmarks.scenarios.cancelling import time_cancels
from benchmarks.scenarios.cold import cold_gaps
from benchmarks.scenarios.counts import count_reads, count_requests
from benchmarks.scenarios.formats import compare_formats
from benchmarks.scenarios.idle import idle_gaps
from benchmarks.scenarios.planning import time_planning
from benchmarks.scenarios.training import slow_down
from benchmarks.scenarios.values import value_gaps
from benchmarks.states import MIB, State, large_tensors, small_tensors
from benchmarks.targets import LOCAL, MINIO, SINK, TARGETS, Target, open_target
from tests.servers import ServerUnavailableError

# Seconds that one contender may use in one scenario, its warm-up included; slow ones get fewer rounds.
_SECONDS_EACH = 22.0
_SECONDS_SMALL = 6.0
_SECONDS_TRAINING = 8.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run; `write` puts the results into the docs as well."""

    scenarios: tuple[str, ...]
    rounds: int
    size_mib: int
    contenders: tuple[str, ...]
    formats: tuple[str, ...]
    small: bool
    write: bool


@dataclass
class Suite:
    """Collects results and figures as the scenarios deliver them."""

    choice: Choice
    large: State
    small: State
    results: list[Result] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    formats: dict[str, list[Figure]] = field(default_factory=dict)

    async def run(self) -> None:
        self.figures += await idle_gaps("at the start")
        for name in TARGETS:
            if {name, *_NEEDS_TARGET.get(name, ())} & set(self.choice.scenarios):
                await self._run_target(name)
        if "planning" in self.choice.scenarios:
            _say("planning and parsing")
            self.figures += await time_planning(self.small)
        if "values" in self.choice.scenarios:
            _say("plain values and very many tensors")
            self.figures += await value_gaps()
        if "formats" in self.choice.scenarios:
            _say("formats")
            found = await compare_formats(self.large, rounds=self.choice.rounds, names=self.choice.formats)
            self.formats["Formats, save and load"] = found.speeds
            self.formats["Formats, opens and reads on a disk"] = found.reads
            self.figures += found.package

    async def _run_target(self, name: str) -> None:
        try:
            with open_target(name) as target:
                await self._run_on(target)
        except ServerUnavailableError as error:
            _say(f"{name} can't be had, so nothing was measured there: {error}")

    async def _run_on(self, target: Target) -> None:
        chosen = self.choice.scenarios
        if target.name in chosen:
            await self._compare(target, self.large, _SECONDS_EACH)
            if self.choice.small:
                await self._compare(target, self.small, _SECONDS_SMALL)
        if target.name == SINK and target.sink is not None and "counts" in chosen:
            _say("requests and bytes")
            async with target.storage() as storage:
                self.figures += await count_requests(storage, target.sink, self.large)
                counted = await count_reads(storage, target.sink, self.large, self.choice.formats)
            self.formats["Formats, an open and one tensor from S3"] = counted
        if target.name == SINK and "training" in chosen:
            _say(f"{target.name}: a training loop beside the save")
            contenders = [c for c in self._contenders(target) if c.name != "s3fs"]
            self.figures += await slow_down(
                target.name, contenders, self.large, rounds=self.choice.rounds, seconds_each=_SECONDS_TRAINING
            )
        if target.name in (SINK, MINIO) and "cancelling" in chosen:
            _say(f"{target.name}: cancels")
            self.figures += await time_cancels(target)
        if "cold" in chosen:
            _say(f"{target.name}: the first save and load of a process")
            self.figures += await cold_gaps(target, rounds=self.choice.rounds)

    async def _compare(self, target: Target, state: State, seconds: float) -> None:
        _say(f"{target.name}: save and load of {state.name}")
        self.results += await run_rounds(
            target.name,
            self._contenders(target),
            state,
            rounds=self.choice.rounds,
            seconds_each=seconds,
            sink=target.sink,
        )
        self.figures += await idle_gaps(f"after {target.name}, {state.name}")

    def _contenders(self, target: Target) -> list[Contender]:
        wanted = self.choice.contenders
        return [contender for contender in target.contenders() if not wanted or contender.name in wanted]


_NEEDS_TARGET = {
    SINK: ("counts", "training", "cancelling", "cold"),
    MINIO: ("cancelling", "cold"),
    LOCAL: ("cold",),
}


async def run_suite(choice: Choice) -> int:
    """Run, print the tables, write what is to be written. Returns the exit code: 0, missed goals included."""
    start = time.perf_counter()
    suite = Suite(choice, large_tensors(choice.size_mib * MIB), small_tensors())
    await suite.run()
    run = Run(
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=time.perf_counter() - start,
        rounds=choice.rounds,
        results=suite.results,
        goals=check_goals(suite.results, suite.large.name),
        figures=suite.figures,
        formats=suite.formats,
    )
    print(run.text())
    if choice.write:
        run.write()
        written = Run.read()  # rounded as in the file, so that the pages can be made from it again
        write_document(written)
        write_readme(written)
        write_picture(suite.results, suite.large.name)
    _say(f"done in {run.seconds:.0f} s")
    return 0


def _say(text: str) -> None:
    print(f"# {datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)
