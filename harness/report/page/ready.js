// Runs once, when the page is drawn. Sets the controls and selects the case that the page's address names, else the first
// case, and changes two habits of the table: after a sort it scrolls to the selected row, and takes the focus whenever
// that row moves. Arguments: table and cases (its source), filter (of the cases), controls (widgets with names).
const { grid } = Bokeh.index.find_one(table)
grid.onSort.subscribe(() => grid.scrollRowToTop(0))
grid.focus = () => {} // the text filter keeps the focus while it is typed
const read = () => {
    const state = new URLSearchParams(location.hash.slice(1)) // before a change of a control writes another one
    for (const control of controls) {
        const value = state.get(control.name)
        const { labels, options } = control
        if (value === null) continue
        if (labels) control.active = [...labels.keys()].filter((i) => value.split("-").includes(labels[i]))
        else if (!options) control.value = control.value_input = value
        else if (options.some((one) => (Array.isArray(one) ? one[0] : one) === value)) control.value = value
    }
    const index = cases.data.case.indexOf(state.get("case") ?? cases.data.case[0])
    cases.selected.indices = filter.booleans[index] ? [index] : []
}
read()
addEventListener("hashchange", read)
