"""A sweep as one file: a picture (PNG, SVG) or a page (HTML) that needs no other file and no network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bulkinfer.errors import JobError
from bulkinfer.sweep.result import write_file

ENDINGS = (".png", ".svg", ".html")
_STYLE = """
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { font-weight: 600; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
:root { color-scheme: light dark; } table { font-size: .85em; }
th, td { padding: .25rem .4rem; text-align: right; border-bottom: 1px solid var(--rule); }
pre { padding: 1rem; border: 1px solid var(--rule); overflow-x: auto; }
"""
_COLUMNS = (
    "at once",
    "arrivals/s",
    "requests/s",
    "output tokens/s",
    "queue p95, s",
    "first token p95, s",
    "p50, s",
    "p95, s",
    "p99, s",
    "KV cache",
    "memory, MiB",
    "preemptions",
    "refused",
    "cancelled",
    "errors",
)


def check_ending(path: Path) -> None:
    """Refuse a file of an unknown kind. Raises JobError."""
    if path.suffix.lower() not in ENDINGS:
        raise JobError(f"--to: expected a file that ends in {', '.join(ENDINGS)}, found {path.name}")


def draw_sweep(found: Mapping[str, Any], other: Mapping[str, Any] | None, path: Path) -> None:
    """Draw a sweep, or two over each other, into a file. Raises JobError if it cannot be written."""
    # Here, and not above: matplotlib takes half a second to import.
    from bulkinfer.charts import draw_page_png, draw_svg  # noqa: PLC0415
    from bulkinfer.sweep.plots import make_charts  # noqa: PLC0415

    charts = make_charts(found, other)
    match path.suffix.lower():
        case ".png":
            title = f"Capacity of {found['job']}"
            content = draw_page_png(charts, title=title, lines=list(_iter_head(found, other)), num_columns=2)
        case ".svg":
            content = draw_svg(charts[0]).encode()
        case _:
            content = "".join(_iter_page(found, other)).encode()
    write_file(path, content, "--to")


def iter_figures(found: Mapping[str, Any], other: Mapping[str, Any] | None) -> Iterator[str]:
    """What a page or a picture says of two sweeps, besides the charts."""
    yield from _iter_head(found, other)
    yield from _iter_table(found["points"] if other is None else [*found["points"], *other["points"]])


def _iter_page(found: Mapping[str, Any], other: Mapping[str, Any] | None) -> Iterator[str]:
    from bulkinfer.charts import DARK, LIGHT, css_variables, draw_adaptive_svg  # noqa: PLC0415
    from bulkinfer.sweep.plots import make_charts  # noqa: PLC0415

    title = escape(f"Capacity of {found['job']}")
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{title}</title>\n<style>\n"
    for theme, rule in ((LIGHT, ":root"), (DARK, "@media (prefers-color-scheme: dark) { :root")):
        own = f"--ink: {theme.text}; --paper: {theme.background}; --rule: {theme.grid};"
        yield f"{rule} {{ {css_variables(theme)} {own} }}{' }' if rule.startswith('@') else ''}\n".replace("{ {", "{")
    yield f"{_STYLE}</style>\n<h1>{title}</h1>\n"
    yield from (f"<p>{escape(line)}</p>\n" for line in _iter_head(found, other))
    yield '<div class="charts">\n'
    for chart in make_charts(found, other):
        yield f"<figure><figcaption>{escape(chart.title)}</figcaption>{draw_adaptive_svg(chart)}</figure>\n"
    yield "</div>\n<h2>Points</h2>\n"
    yield from _iter_table(found["points"])
    if other is not None:
        yield "<h2>Points of the other sweep</h2>\n"
        yield from _iter_table(other["points"])
    yield "<h2>Limits</h2>\n"
    recommendation = found["recommendation"]
    if recommendation["limits"] is None:
        yield f"<p>No recommendation: {escape(recommendation['reason'])}</p>\n"
    else:
        yield "<ul>\n" + "".join(f"<li>{escape(reason)}</li>\n" for reason in recommendation["reasons"]) + "</ul>\n"
        yield f"<pre>{escape(recommendation['yaml'])}</pre>\n"
    yield "".join(f"<p>Note: {escape(note)}</p>\n" for note in found["notes"])
    yield "</html>\n"


def _iter_head(found: Mapping[str, Any], other: Mapping[str, Any] | None) -> Iterator[str]:
    options = found["options"]
    mix = ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in options["mix"].items())
    yield f"{found['model']}, measured {found['measured_at']} with bulkinfer {found['bulkinfer']}"
    full = "rejecting" if options["reject"] else "waiting"
    yield f"{mix}; arrivals {options['arrivals']}; queue of {options['queue_size']:,}, {full}"
    if other is not None:
        yield f"other: {other['model']}, measured {other['measured_at']} with bulkinfer {other['bulkinfer']}"


def _iter_table(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield '<div class="table"><table>\n<tr>' + "".join(f"<th>{column}</th>" for column in _COLUMNS) + "</tr>\n"
    for point in points:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(point)) + "</tr>\n"
    yield "</table></div>\n"


def _cells(point: Mapping[str, Any]) -> Iterator[str]:
    latency, requests = point["latency_s"], point["requests"]
    yield f"{point['concurrency']:,}"
    yield "" if point["rate_per_s"] is None else f"{point['rate_per_s']:g}"
    yield f"{point['throughput']['requests_per_s']:.3g}"
    yield f"{point['throughput']['output_tokens_per_s']:,.0f}"
    for name, part in (("queue", "p95"), ("first_token", "p95"), ("total", "p50"), ("total", "p95"), ("total", "p99")):
        yield "" if latency[name][part] is None else f"{latency[name][part]:.3g}"
    yield f"{100 * point['engine']['kv_cache_usage_peak']:.0f} %"
    yield f"{point['engine']['memory_bytes'] / 2**20:,.0f}"
    yield f"{point['engine']['preemptions']:,}"
    yield f"{requests['refused']:,}"
    yield f"{requests['cancelled']:,}"
    yield f"{requests['errors']:,}"
