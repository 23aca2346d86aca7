"""The colours of the light and the dark look.

The first two of the series' colours are those of Okabe and Ito ("Color Universal Design", 2008); the first three are
told apart with any colour vision, and all have at least 3:1 contrast with the background (WCAG 2.1, 1.4.11). Text has
more than 4.5:1 (1.4.3).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours as #rrggbb, all different: in an SVG each stands for its role."""

    name: str
    background: str
    text: str
    muted: str
    """Labels of axes and ticks."""
    grid: str
    span: str
    """Fill of what stands out; drawn translucent."""
    series: tuple[str, ...]

    def roles(self) -> dict[str, str]:
        """Each colour by the name of what it is for."""
        roles = {
            "background": self.background,
            "text": self.text,
            "muted": self.muted,
            "grid": self.grid,
            "span": self.span,
        }
        return roles | {f"series-{number}": color for number, color in enumerate(self.series)}


LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1c2126",
    muted="#535b64",
    grid="#dde1e6",
    span="#d1242f",
    series=("#0072b2", "#d55e00", "#7a2f66", "#4f9d69", "#c2417c", "#444444"),
)
DARK = Theme(
    name="dark",
    background="#14171b",
    text="#e7eaee",
    muted="#a6afb9",
    grid="#343b44",
    span="#ff7b72",
    series=("#4aa8e0", "#f28c45", "#ffd9ec", "#33bd95", "#e3b923", "#b7a5f0"),
)

VARIABLE_PREFIX = "--chart-"


def css_variables(theme: Theme) -> str:
    """The theme as CSS declarations, for `:root`: what the drawings of `draw_adaptive_svg` take their colours from."""
    return " ".join(f"{VARIABLE_PREFIX}{role}: {color};" for role, color in theme.roles().items())
