// Shows the cases that the widgets ask for, and their speedup over the chosen rival. Runs after every change of a
// widget. Arguments: table (of the cases), times (microseconds by rival), filter (a BooleanFilter of the views),
// summary (a Div), rival, network, text, batches, filters (widgets), and all (the choice of every network).
const cases = table.source
const theirs = times[rival.value]
const { ours_us, speedup, rival_us } = cases.data
const active = (group) => new Set(group.active.map((i) => group.labels[i]))
const batch_sizes = active(batches), filter_sizes = active(filters)
const words = text.value.toLowerCase().split(/\s+/).filter((word) => word)
let won = 0, compared = 0, logarithms = 0
const shown = cases.data.case.map((label, i) => {
    rival_us[i] = theirs[i]
    speedup[i] = theirs[i] === null ? null : theirs[i] / ours_us[i]
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
const mean = compared ? `geometric mean ${Math.exp(logarithms / compared).toFixed(2)}x, ${won} won` : "none to compare"
summary.text = `${compared} cases: ${mean}`
cases.change.emit()
table.view.change.emit() // a table draws itself again for this alone
