// Shows the algorithms of the selected case and their runs, nothing where no case is selected. Runs when the selection
// changes. Arguments: cases and runs (ColumnDataSources), table (of the algorithms), details and notes (by case), title
// and note (Divs of plain text), plot (a figure of the runs), subject (the name of ours), colours (of the subject, of
// cuConv's other algorithms and of the others).
const [selected] = cases.selected.indices
const rows = details[selected] ?? []
const mean = (values) => values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null
const name = ([algorithm, precision]) => precision === "fp32" ? algorithm : `${algorithm} (TF32)`
const colour = ([algorithm]) => colours[algorithm === subject ? 0 : algorithm.startsWith("cuConv ") ? 1 : 2]
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
const dots = timed.flatMap((row) => row[5].map((us, i) => ({ name: name(row), us, run: i + 1, colour: colour(row) })))
if (!dots.length) // an empty logarithmic axis is an error
    dots.push({ name: "", us: 1, run: 1, colour: "transparent" })
runs.data = Object.fromEntries(Object.keys(dots[0]).map((key) => [key, dots.map((dot) => dot[key])]))
plot.y_range.factors = timed.length ? timed.map(name).reverse() : [""]
plot.height = 60 + 15 * timed.length
const { networks, layers } = cases.data
title.text = rows.length ? `${cases.data.case[selected]}: ${networks[selected]}, ${layers[selected]}` : "No case is selected."
note.text = notes[selected] ?? ""
