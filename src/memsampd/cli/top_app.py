"""The live table of ``memsampd top``; needs textual."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from memsampd.cli.targets import Document, TargetsSource
from memsampd.cli.top_rows import (
    Column,
    History,
    Row,
    columns_of,
    fitted,
    levels_of,
    rows_of,
    sorted_rows,
)
from memsampd.errors import MemsampdError

_EVERY_SECONDS = 1.0


class TopApp(App[None]):
    """Targets in a table, and what is not known of the chosen one below it.

    Args:
        source: who knows of targets; asked in a thread, so that a slow answer blocks no key.
        sort: key of the column to sort by.
    """

    CSS = """
    #head { height: 1; }
    #details { height: 5; border-top: solid $foreground-muted; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("n", "toggle_now", "now/whole run"),
        Binding("r", "reverse", "reverse"),
        *(
            Binding(key, f"sort_by('{key}')", word, show=key in "pcb1u")
            for key, word in (
                *(("p", "pid"), ("c", "command"), ("h", "phase"), ("1", "1-3 caches")),
                *(("2", "cache"), ("3", "cache"), ("b", "MB/s"), ("t", "trend"), ("u", "unknown")),
            )
        ),
    ]

    def __init__(self, source: TargetsSource, sort: str) -> None:
        super().__init__()
        self._source = source
        self._sort = sort
        self._reverse = False
        self._now = False
        self._history = History()
        self._targets: list[Document] = []
        self._rows: dict[str, Row] = {}
        self._columns: list[Column] = []
        self._trouble = "asking for targets"

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row", cell_padding=0, zebra_stripes=True)
        yield Static(id="details", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to ask."""
        self._show()
        self._ask()
        self.set_interval(_EVERY_SECONDS, self._ask)

    def _ask(self) -> None:
        self.run_worker(self._look, thread=True, exclusive=True, group="look")

    def _look(self) -> None:
        """Ask for the targets; in a thread."""
        try:
            targets = self._source.targets()
        except MemsampdError as error:
            self.call_from_thread(self._take, None, str(error))
        else:
            self.call_from_thread(self._take, targets, "")

    def _take(self, targets: list[Document] | None, trouble: str) -> None:
        self._trouble = trouble
        if targets is not None:
            self._targets = targets
            self._history.add(targets)
        self._show()

    def action_toggle_now(self) -> None:
        """Show the present phases, or whole runs."""
        self._now = not self._now
        self._show()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._reverse = not self._reverse
        self._show()

    def action_sort_by(self, key: str) -> None:
        """Sort by a column."""
        self._sort = key
        self._show()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell what is not known of the chosen target."""
        self._detail(event.row_key.value)

    def _show(self) -> None:
        """Draw all again, with the cursor on the target where it was."""
        table = self.query_one(DataTable)
        chosen = self._chosen(table)
        levels = levels_of(self._targets)
        self._columns = columns_of(levels)
        at = next((i for i, each in enumerate(self._columns) if each.key == self._sort), 0)
        rows = rows_of(self._targets, levels, self._history, self._now)
        ordered = sorted_rows(rows, at, self._columns[at].is_text, self._reverse)
        self._rows = {row.target: row for row in ordered}
        table.clear(columns=True)
        for index, column in enumerate(self._columns):
            style = "bold reverse" if index == at else "bold"
            table.add_column(
                Text(f"{fitted(column.title, column)} ", style), width=column.width + 1
            )
        for row in ordered:
            cells = [
                fitted(cell, each) for cell, each in zip(row.cells, self._columns, strict=True)
            ]
            table.add_row(*(Text(cell) for cell in cells), key=row.target)
        if chosen in self._rows:
            table.move_cursor(row=list(self._rows).index(chosen))
        self._head()
        self._detail(self._chosen(table))

    def _chosen(self, table: DataTable[Text]) -> str:
        """Return the target that the cursor is on; empty if there is none."""
        if not table.row_count:
            return ""
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""

    def _head(self) -> None:
        idle = sum(bool(target.get("idle")) for target in self._targets)
        view = "present phases" if self._now else "whole runs"
        words = (
            f"memsampd: {len(self._targets)} targets, {idle} idle; {view}, LRU misses per access"
        )
        self.query_one("#head", Static).update(self._trouble or words)

    def _detail(self, target: str | None) -> None:
        row = self._rows.get(target or "")
        lines = row.details if row is not None else ()
        said = "\n".join(lines) if lines else "nothing" if row is not None else "-"
        self.query_one("#details", Static).update(f"not known: {said}")
