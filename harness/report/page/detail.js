// Shows the algorithms of the selected case and their runs. Runs when another case is selected. Arguments: cases and
// runs (ColumnDataSources), table (of the algorithms), details and notes (by case), title and note (Divs of plain text),
// plot (a figure of the runs), subject (the start of the names of ours), ours and theirs (colours).
const [selected] = cases.selected.indices
if (selected !== undefined) {
    const rows = details[selected]
    const mean = (values) => values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null
    const name = ([algorithm, precision]) => precision === "fp32" ? algorithm : `${algorithm} (TF32)`
    table.source.data = {
        name: rows.map(name),
        mean_us: rows.map((row) => mean(row[5])),
        separated_us: rows.map((row) => row[6] ?? null),
        cold_us: rows.map((row) => row[7] ?? null),
        error: rows.map((row) => row[3]),
        workspace: rows.map((row) => row[4]),
        status: rows.map((row) => row[2]),
    }
    table.view.change.emit() // a table draws itself again for this alone
    const timed = rows.filter((row) => row[5].length)
    runs.data = {
        name: timed.flatMap((row) => row[5].map(() => name(row))),
        us: timed.flatMap((row) => row[5]),
        run: timed.flatMap((row) => row[5].map((_, i) => i + 1)),
        colour: timed.flatMap((row) => row[5].map(() => name(row).startsWith(subject) ? ours : theirs)),
    }
    plot.y_range.factors = timed.map(name).reverse()
    plot.height = 60 + 15 * timed.length
    const { networks, layers } = cases.data
    title.text = `${cases.data.case[selected]}: ${networks[selected]}, ${layers[selected]}`
    note.text = notes[selected]
}
