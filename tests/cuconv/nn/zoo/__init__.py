"""Small models that are easily converted wrongly, each with an example and the calls that are made afterwards."""

from tests.cuconv.nn.zoo import arguments, questions, state, weights, writes

ZOO = {**arguments.ENTRIES, **state.ENTRIES, **writes.ENTRIES, **weights.ENTRIES, **questions.ENTRIES}
