"""Wall times as a picture: a panel for each queue, a bar for each peer, the range of its runs on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.figures import Row

OURS, OTHERS = "#1b6e6e", "#b8b8b8"
NUM_COLUMNS = 2


def draw_walls(rows: Sequence[Row], titles: Mapping[str, str], first_peer: str, path: Path) -> None:
    """Write a PNG."""
    queues = list(dict.fromkeys(row.queue for row in rows))
    num_lines = max(1, -(-len(queues) // NUM_COLUMNS))
    height = max(sum(row.queue == queue for row in rows) for queue in queues)
    figure, panels = plt.subplots(
        num_lines, NUM_COLUMNS, figsize=(11, num_lines * (0.9 + 0.34 * height)), squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(queues) :]:
        panel.set_visible(False)
    for panel, queue in zip(panels.flat, queues, strict=False):
        shown = [row for row in rows if row.queue == queue]
        medians = [row.wall_s.median for row in shown]
        ranges = (
            [row.wall_s.median - row.wall_s.low for row in shown],
            [row.wall_s.high - row.wall_s.median for row in shown],
        )
        names = [titles.get(row.peer, row.peer) for row in shown]
        colours = [OURS if row.peer == first_peer else OTHERS for row in shown]
        bars = panel.barh(names, medians, xerr=ranges, color=colours, ecolor="#333333", capsize=3, height=0.65)
        panel.bar_label(bars, labels=[f"{number:.1f} s" for number in medians], padding=6, fontsize=8)
        panel.invert_yaxis()
        panel.margins(x=0.18)
        panel.set_title(f"{queue} ({shown[0].num_documents} documents)", fontsize=10, loc="left")
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Wall time from process start to all answers on disk: median, range of the runs", fontsize=11)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
