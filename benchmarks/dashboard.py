"""The dashboard with a run of a million kernels and a thousand stored runs, in Debian's Chromium, against its budget.

    python benchmarks/dashboard.py [--kernels 1000000] [--runs 1000] [--repeats 5] [--store FOLDER] [--json FILE]

A store is made (or taken from ``--store``), ``fusion-audit serve`` started on it, and a browser opens its pages.
*First* times are of a server that has loaded nothing and a browser that has cached nothing; the others are medians of
later visits. Times end when the browser has painted what was asked for. What else the machine does is stated: how many
times longer than its processor time a fixed piece of work takes, before and after. Needs playwright and
/usr/bin/chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from auditor.store import Store
from benchmarks.dashboard_runs import large_run, small_runs

CHROMIUM = "/usr/bin/chromium"
PAINTED = """new Promise(resolve => {{
  const begin = performance.now(), holds = {test};
  const look = () => holds()
    ? requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begin)))
    : setTimeout(look, 4);
  ({act})();
  look();
}})"""
"""Do something, and say after how many milliseconds a test held and the browser had painted."""

OVERVIEW = (
    "() => document.querySelectorAll('main .tile').length > 2"
    " && /FUS\\d/.test((document.querySelector('main') || {}).innerText || '')"
)
FIGURES = "() => ['time', 'roofline'].every(name => document.querySelector(`#overview-${name} .main-svg`))"
RUNS = "() => document.querySelectorAll('#runs-grid .ag-row').length > 5"
DRAWN = (
    "() => /kernels?( and copies)? on/.test((document.querySelector('#timeline-says') || {}).innerText || '')"
    " && document.querySelector('#timeline-graph .heatmaplayer image, #timeline-graph .barlayer path')"
)
ROWS = (
    "() => document.querySelectorAll('#kernels-grid .ag-center-cols-container .ag-row:not(.ag-row-loading)').length > 5"
    " && /kernels/.test((document.querySelector('#kernels-says') || {}).innerText || '')"
)


@dataclass
class Figure:
    """One line of the report. ``budget`` None: stated, not bound."""

    what: str
    value: float
    unit: str
    budget: float | None = None
    best: float | None = None
    """The least of several times, of which ``value`` is the median."""

    def __str__(self) -> str:
        held = "" if self.budget is None else "within" if self.value <= self.budget else "OVER"
        bound = "" if self.budget is None else f"{self.budget:,.0f} {self.unit}"
        best = "" if self.best is None else f"{self.best:,.1f}"
        return f"{self.what:<44}{self.value:>12,.1f} {self.unit:<4}{best:>10}{bound:>12}  {held}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--store", type=Path, help="a store of an earlier call: nothing is made where it holds enough")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = args.store or Path(folder) / "store"
        run = fill(place, args.kernels, args.runs)
        others = [crowding()]
        with served(place) as (url, process):
            figures = measure(url, run, args.repeats)
            others.append(crowding())
            figures.append(Figure("server memory, largest", peak_mb(process.pid), "MB", 1500))
    crowded = f"{os.cpu_count()} cores, work takes ×{others[0]:.1f} and ×{others[1]:.1f} its processor time"
    print(f"{args.kernels:,} kernels in one run, {args.runs:,} runs; {crowded}\n")
    print(f"{'':<44}{'':>12} {'':<4}{'best':>10}{'budget':>12}")
    print("\n".join(map(str, figures)))
    if args.json:
        args.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))


def fill(place: Path, kernels: int, runs: int) -> str:
    """The id of the large run in a store that holds that many runs."""
    with Store.open(place) as store:
        large = [run.id for run in store.list_runs() if run.kernels == kernels]
        run = large[0] if large else store.save(*large_run(kernels))
        small_runs(store, max(runs - store.count_runs(), 0))
        return run


@contextmanager
def served(place: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service over the store, in a process of its own."""
    code = "import sys; from auditor.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--no-worker", "--db", str(place)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"(http://\S+?)/login", line):
                yield found[1], process
                break
        else:
            raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait(30)


def measure(url: str, run: str, repeats: int) -> list[Figure]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        fresh = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)  # it waits by eval
        page = fresh.new_page()
        wire = Wire(fresh, page)
        figures = [Figure("overview usable, first", opened(page, f"{url}/run/{run}", OVERVIEW), "ms", 1500)]
        page.wait_for_function(FIGURES, timeout=60_000)
        page.wait_for_load_state("networkidle")
        figures += [Figure("first page over the wire, compressed", wire.total / 1e6, "MB", 3)]
        figures += [Figure("its waterfall and roofline, first", wire.ms(), "ms")]
        page.goto("about:blank")
        for what, path, test, bound in (
            ("overview usable, again", f"/run/{run}", OVERVIEW, 1500), ("list of runs", "/", RUNS, 1500),
            ("timeline drawn", f"/run/{run}/timeline", DRAWN, 2500),
            ("list of kernels", f"/run/{run}/kernels", ROWS, 1500),
        ):  # fmt: skip
            times = [opened(page, url + path, test) for _ in range(repeats + 1)]
            if what == "timeline drawn":
                figures.append(Figure("timeline drawn, first", times[0], "ms", bound))
            figures.append(Figure(what, median(times[1:]), "ms", bound, min(times[1:])))
        figures += zooms(page, f"{url}/run/{run}/timeline")
        figures += lists(page, f"{url}/run/{run}/kernels")
        browser.close()
    return figures


class Wire:
    """Bytes that came over the wire for one page."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self.total = 0.0
        self._begin = perf_counter()
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.total += float(event["encodedDataLength"])

    def ms(self) -> float:
        """Since the first request."""
        return (perf_counter() - self._begin) * 1e3


def opened(page: Page, url: str, test: str) -> float:
    """Milliseconds from the start of a navigation until ``test`` holds and is painted."""
    begin = perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function(f"({test})()", timeout=60_000, polling="raf")
    return (perf_counter() - begin) * 1e3


def zooms(page: Page, url: str) -> list[Figure]:
    """In to single kernels, along, and out again."""
    opened(page, url, DRAWN)
    steps = ["in"] * 11 + ["later", "earlier"] * 2 + ["out"] * 4 + ["whole"]
    times = [
        acted(page, f"() => document.querySelector('#timeline-{step}').click()", "#timeline-says") for step in steps
    ]
    return [
        Figure("zoom and pan, median", median(times), "ms", 400, min(times)),
        Figure("zoom and pan, slowest", max(times), "ms", 400),
    ]


def lists(page: Page, url: str) -> list[Figure]:
    """Sorted, filtered and grouped; each on a page of its own, so that nothing is at hand yet."""

    def of(act: str, watched: str) -> float:
        opened(page, url, ROWS)
        page.wait_for_load_state("networkidle")
        return acted(page, act, watched)

    head = "#kernels-grid .ag-header-cell[col-id={}] .ag-header-cell-label"
    first = "#kernels-grid .ag-center-cols-container .ag-row[row-index='0']"
    figures = []
    for column in ("dur_us", "module", "name"):
        click = f'() => document.querySelector("{head.format(column)}").click()'
        figures.append(Figure(f"sort by {column}", of(click, first), "ms", 400))
    for column, value in (("name", "gemm"), ("dur_us", "300")):
        figures.append(Figure(f"filter by {column}", of(typed(column, value), "#kernels-says"), "ms", 400))
    return figures


def typed(column: str, value: str) -> str:
    """A value put into a column's filter, as typing does."""
    return (
        "() => { const heads = [...document.querySelectorAll('#kernels-grid .ag-header-cell[col-id]')]"
        ".filter(e => !e.classList.contains('ag-floating-filter'));"
        f"const at = heads.findIndex(e => e.getAttribute('col-id') === '{column}');"
        "const input = document.querySelectorAll('#kernels-grid .ag-floating-filter input:not([disabled])')[at];"
        "const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;"
        f"set.call(input, '{value}'); input.dispatchEvent(new Event('input', {{bubbles: true}})); }}"
    )


def acted(page: Page, act: str, watched: str) -> float:
    """Milliseconds from an action until the text of ``watched`` has changed and is painted."""
    before = json.dumps(page.inner_text(watched))
    text = f"(document.querySelector(\"{watched}\") || {{}}).innerText || ''"
    test = f"() => {{ const text = {text}; return text.trim() && text !== {before}; }}"
    return float(page.evaluate(PAINTED.format(act=act, test=test)))


def crowding() -> float:
    """How many times its processor time a piece of work takes: 1 on an idle machine."""
    wall, own = perf_counter(), process_time()
    while process_time() - own < 0.5:
        sum(range(1000))
    return (perf_counter() - wall) / 0.5


def peak_mb(pid: int) -> float:
    """The most resident memory that a process has had, in MB (1e6)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


if __name__ == "__main__":
    main()
