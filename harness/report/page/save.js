// Writes what is chosen into the page's address, so that a view can be linked; ready.js reads it. Runs after every change
// of a control or of the selected case. Arguments: controls (widgets with names) and cases (a ColumnDataSource).
const state = new URLSearchParams()
for (const { name, labels, active, value_input, value } of controls)
    state.set(name, labels ? active.map((i) => labels[i]).join("-") : value_input ?? value)
state.set("case", cases.data.case[cases.selected.indices[0]] ?? "")
history.replaceState(null, "", `#${state}`)
