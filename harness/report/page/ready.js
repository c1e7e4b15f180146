// Runs once, when the page is drawn. Selects the first case, and changes two habits of the table: after a sort it scrolls
// to the selected row, and takes the focus whenever that row moves. Argument: table (of the cases).
table.source.selected.indices = [0]
const { grid } = Bokeh.index.find_one(table)
grid.onSort.subscribe(() => grid.scrollRowToTop(0))
grid.focus = () => {} // the text filter keeps the focus while it is typed
