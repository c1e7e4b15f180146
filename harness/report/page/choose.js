// Shows the cases that the widgets ask for, with the chosen times and their speedup over the chosen rival. Runs after
// every change of a widget. Arguments: table (of the cases), ours and theirs (microseconds by choice, and by rival and
// choice), filter (a BooleanFilter of the views), summary (a Div), rival, time, precision, allowed (the rival's
// precision), network, text, batches, filters (widgets), and all (the choice of every network).
const cases = table.source
const mine = ours[`${time.value} ${precision.value}`] ?? []
const other = theirs[rival.value][`${time.value} ${allowed.value}`] ?? { us: [], which: [], names: [] }
const { gflop, ours_us, tflops, speedup, rival_us, which } = cases.data
const active = (group) => new Set(group.active.map((i) => group.labels[i]))
const batch_sizes = active(batches), filter_sizes = active(filters)
const words = text.value_input.toLowerCase().split(/\s+/).filter((word) => word)
let won = 0, compared = 0, logarithms = 0
const shown = cases.data.case.map((label, i) => {
    ours_us[i] = mine[i] ?? null
    rival_us[i] = other.us[i] ?? null
    which[i] = other.names[other.which[i]] ?? ""
    tflops[i] = ours_us[i] === null ? null : 1e3 * gflop[i] / ours_us[i]
    speedup[i] = ours_us[i] === null || rival_us[i] === null ? null : rival_us[i] / ours_us[i]
    const names = `${label} ${cases.data.networks[i]} ${cases.data.layers[i]}`.toLowerCase()
    const visible = batch_sizes.has(String(cases.data.batch[i])) && filter_sizes.has(cases.data.filter[i])
        && (network.value === all || cases.data.networks[i].split(";").includes(network.value))
        && words.every((word) => names.includes(word))
    if (visible && speedup[i] !== null) {
        compared += 1
        won += speedup[i] > 1 ? 1 : 0
        logarithms += Math.log(speedup[i])
    }
    return visible
})
filter.booleans = shown
const mean = compared ? `geometric mean ${Math.exp(logarithms / compared).toFixed(2)}x, ${won} won` : "none has both times"
summary.text = `${compared} cases: ${mean}`
const [selected] = cases.selected.indices
if (selected !== undefined && !shown[selected]) // what is hidden is not shown in detail
    cases.selected.indices = []
cases.change.emit()
table.view.change.emit() // a table draws itself again for this alone
Bokeh.index.find_one(table)?.grid.scrollRowToTop(0) // after the rows change, the first one is seen
