"""How long a browser takes to open pages of `esprof report`. One JSON line a figure.

    python -m benchmarks.opening PAGE… [--repeats 9]

All pages are opened in turn, so those of two versions compare under the same load. Needs Chromium and selenium.
`opened_s` ends with the first frame in which the document is loaded and the charts on the screen are drawn, `drawn_s` with
the frame in which all charts are; `longest_task_s` is the longest time without an answer to the user until then.
`main_thread_cpu_s` is the CPU time of the page's main thread. Medians of the repeats.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.figures import show
from tests.cases.browser import chromium

_WATCH = """(() => {
  const seen = (window.opening = { longest: 0 });
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) seen.longest = Math.max(seen.longest, duration);
  }).observe({ type: "longtask", buffered: true });
  const onScreen = (chart) => {
    const { top, bottom } = chart.getBoundingClientRect();
    return top < innerHeight && bottom > 0;
  };
  const frame = () => {
    const undrawn = [...document.querySelectorAll(".chart:not(.js-plotly-plot)")];
    if (document.readyState === "complete") {
      if (!undrawn.some(onScreen)) seen.opened ??= performance.now();
      if (!undrawn.length) seen.drawn ??= performance.now();
    }
    if (!seen.drawn) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})()"""

_WAIT = """const done = arguments[0];
const look = () => (window.opening.drawn ? setTimeout(() => done(window.opening), 50) : setTimeout(look, 20));
look();"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    found: dict[Path, list[dict[str, float]]] = {page: [] for page in options.pages}
    with tempfile.TemporaryDirectory() as profile, chromium(profile) as browser:
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        for repeat in range(options.repeats + 1):
            for page in options.pages:
                figures = _opened(browser, page)
                if repeat:  # In the first round the browser itself warms up.
                    found[page].append(figures)
    for page, rounds in found.items():
        for name in rounds[0]:
            context = {"page": page.name, "bytes": page.stat().st_size, "repeats": options.repeats}
            show(name, median(one[name] for one in rounds), "s", context)


def _opened(browser, page: Path) -> dict[str, float]:
    """The figures of one opening, in seconds."""
    browser.get("about:blank")
    browser.get(page.resolve().as_uri())
    seen = browser.execute_async_script(_WAIT)
    metrics = {one["name"]: one["value"] for one in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    return {
        "opened_s": seen["opened"] / 1_000,
        "drawn_s": seen["drawn"] / 1_000,
        "longest_task_s": seen["longest"] / 1_000,
        "main_thread_cpu_s": metrics["TaskDuration"],
    }


if __name__ == "__main__":
    main()
