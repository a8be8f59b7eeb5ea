"""Lines of a frame: cells of text in a style, cut to the columns there are. No text of a user steers the terminal."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a style; with a width it is cut or filled to it."""

    text: str
    style: str = ""
    width: int | None = None


def line(cells: Iterable[Cell], width: int, *, selected: bool = False) -> Text:
    """Cells side by side, in at most `width` columns; a selected line is as wide as the screen and stands out."""
    text = Text(no_wrap=True, end="")
    for cell in cells:
        words = plain(cell.text)
        text.append(words if cell.width is None else fitted(words, cell.width), cell.style)
    text.truncate(width, overflow="ellipsis")
    if selected:
        text.pad_right(max(width - cell_len(text.plain), 0))
        text.stylize("on grey23")
    return text


def titled(title: str, width: int, *, bare: bool = False) -> Text:
    """The title of a section, as wide as the screen; a `bare` one stands at the very left."""
    return Text(set_cell_size(title if bare else f"  {title}", width), style="bold grey70 on grey15", end="")


def padded(left: Text, right: Text, width: int, *, whole: bool = False) -> Text:
    """One at the left edge, one at the right. Without room for both the left one is cut, or the right one goes when
    the left has to be `whole`."""
    left = left.copy()
    if not whole:
        left.truncate(max(width - cell_len(right.plain) - 2, width // 3), overflow="ellipsis")
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap < 2:
        return left
    return Text.assemble(left, " " * gap, right, no_wrap=True, end="")


def joined(left: Text, right: Text, at: int) -> Text:
    """Two lines side by side, the second from column `at` on."""
    return Text.assemble(left, " " * max(at - cell_len(left.plain), 0), right, no_wrap=True, end="")


def fitted(words: str, width: int) -> str:
    """The words in exactly `width` columns, with an ellipsis when they were longer."""
    if cell_len(words) <= width:
        return set_cell_size(words, width)
    return set_cell_size(words, width - 1) + "…" if width > 0 else ""


def plain(text: str) -> str:
    """The text without what would move the cursor or change the terminal."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "·" for one in text)
