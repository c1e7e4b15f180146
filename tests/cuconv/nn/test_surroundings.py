"""A converted model changes the same objects outside of its modules as the model does."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import cuconv.nn
from cuconv.nn.surroundings import surroundings
from tests.cuconv.nn.zoo.entries import Model, conv

X, LARGER = torch.randn(2, 4, 8, 9), torch.randn(5, 4, 8, 9)
SEEN, FEATURES, LAST, BY_DEVICE = [], {}, {}, {}


def made(function, **attributes):
    return Model(function, conv=conv(k=3, padding=1), **attributes).eval()


def note(shape):
    SEEN.append(shape)


def notes_shapes(model, x):
    note(x.shape)
    return model.conv(x)


def keeps_features(model, x):
    FEATURES["conv"] = model.conv(x)
    return FEATURES["conv"].relu()


def counts_in_a_default(model, x, calls=[0]):  # noqa: B006
    calls[0] += 1
    return model.conv(x) * calls[0]


class Counter:
    calls = 0

    def __call__(self, value=None):
        self.calls += 1
        return self.calls


def add(model, x, counter):
    return model.conv(x) * counter()


COUNTER = Counter()


def calls_an_object(model, x):
    return model.conv(x) * COUNTER()


def closure():
    calls = []

    def counts(model, x):
        calls.append(1)
        return model.conv(x) * len(calls)

    return counts


def keeps_sizes(model, x):
    model.info["batch"] = x.shape[0]
    return model.conv(x)


def adds_to_a_dictionary(model, x, state):
    state["h"] = model.conv(x) + state["h"]
    return state["h"].relu()


def appends_to_a_list(model, x, results):
    results.append(model.conv(x))
    return results[0].relu()


def asks_for_a_gradient(model, x):
    x.requires_grad_()
    return model.conv(x)


def gives_an_attribute(model, x):
    x.scale = 3
    return model.conv(x)


def writes_to_its_input(model, x):
    y = model.conv(x)
    x.relu_()
    return y


def converted(function, example, **attributes):
    """A model that has been called before, its converted copy, and the report."""
    model = made(function, **attributes)
    with torch.no_grad():
        model(*copy.deepcopy(example))
    return model, *cuconv.nn.convert(model, example)


def both(first, second):
    return lambda model, x: first(model, second(model, x))


@pytest.mark.parametrize(
    "function",
    [
        notes_shapes, keeps_features, counts_in_a_default, closure(),
        calls_an_object, partial(add, counter=Counter()),
        both(closure(), lambda model, x: x), both(lambda model, x: x, closure()), both(closure(), closure()),
    ],
)  # fmt: skip
def test_what_is_outside_of_the_modules_is_written(function):
    model, copied, report = converted(function, (X,))
    assert not report.captured and "a call changes" in report.why_not_captured
    found = []
    for one in (model, copied):
        SEEN.clear(), FEATURES.clear()
        with torch.no_grad():
            one(LARGER)
        found.append((list(SEEN), {name: value.norm().item() for name, value in FEATURES.items()}))
    assert found[1] == (found[0][0], pytest.approx(found[0][1]))


def test_an_object_of_a_module_has_the_sizes_of_the_last_call():
    model, copied, _ = converted(keeps_sizes, (X,), info={})
    with torch.no_grad():
        copied(LARGER)
    assert copied.info == {"batch": 5} and type(copied.info["batch"]) is int
    assert model.info == {"batch": 2}


@pytest.mark.parametrize(
    ("function", "others"),
    [
        (adds_to_a_dictionary, ({"h": X.clone()},)), (appends_to_a_list, ([],)), (asks_for_a_gradient, ()),
        (gives_an_attribute, ()), (writes_to_its_input, ()),
    ],
)  # fmt: skip
def test_arguments_are_written_to(function, others):
    model, copied, _ = converted(function, (X, *others))
    ours, theirs = copy.deepcopy((X, *others)), copy.deepcopy((X, *others))
    with torch.no_grad():
        copied(*ours), model(*theirs)
    assert ours[0].requires_grad == theirs[0].requires_grad and vars(ours[0]) == vars(theirs[0])
    torch.testing.assert_close(ours, theirs)


def makes_a_grid_of_the_last_size(model, x):
    if LAST.get("shape") != tuple(x.shape):
        LAST.update(shape=tuple(x.shape), grid=torch.ones(x.shape))
    return model.conv(x) + LAST["grid"]


class Bank(nn.Module):
    """A model that keeps a mean of its features in its class."""

    mean = None

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        mean = y.mean((0, 2, 3)).detach()
        Bank.mean = mean if Bank.mean is None else 0.9 * Bank.mean + 0.1 * mean
        return y


@pytest.mark.parametrize("make", [lambda: made(makes_a_grid_of_the_last_size), Bank])
def test_the_original_keeps_no_tensors_without_data(make):
    model = make().eval()
    with torch.no_grad():
        model(X[:1])
        expected = model(X[:1])
        cuconv.nn.convert(model, X[:1])
        assert torch.equal(model(X[:1]), expected)
    assert type(Bank.mean) in (type(None), torch.Tensor) and type(LAST.get("grid")) in (type(None), torch.Tensor)


def adds_a_tensor_of_the_device(model, x):
    if x.device not in BY_DEVICE:
        BY_DEVICE[x.device] = torch.ones(4, 1, 1, device=x.device)
    return model.conv(x) + BY_DEVICE[x.device]


def test_a_cache_that_the_first_call_fills_does_not_keep_a_model_from_being_captured():
    BY_DEVICE.clear()
    assert cuconv.nn.convert(made(adds_a_tensor_of_the_device), X)[1].captured


def test_what_code_does_not_name_is_no_part_of_the_surroundings():
    names = surroundings(made(keeps_features))
    assert "FEATURES" in names and not {"SEEN", "LAST", "X"} & set(names)
    assert "SEEN" in surroundings(made(notes_shapes)), "it is named by a function that the code calls"


class Unavailable:
    """A package that is not there, and says so whatever it is asked for."""

    def __getattr__(self, name):
        raise RuntimeError("no such package")


package = Unavailable()


def may_download(model, x):
    return model.conv(x) if model.available else package.download()


class Table:
    """An object that is pickled by a method of its class."""

    @classmethod
    def made(cls):
        return cls()

    def __reduce__(self):
        return type(self).made, ()


class Proxy:
    """A proxy of an object that is not there, such as that of a request which a server is not answering."""

    @property
    def __class__(self):
        raise RuntimeError("no request")


GENERATOR, REQUEST = torch.Generator(), Proxy()


def names_other_objects(model, x):
    return model.conv(x) if GENERATOR else REQUEST


TABLES = [Table() for _ in range(9)]


def looks_at_tables(model, x):
    return model.conv(x) * len(TABLES)


@pytest.mark.parametrize(
    ("function", "attributes"),
    [
        (may_download, {"available": True}),
        (names_other_objects, {}),
        (looks_at_tables, {}),
        (looks_at_tables, {"tables": TABLES}),
    ],
)
def test_objects_that_stay_as_they_are(function, attributes):
    assert converted(function, (X,), **attributes)[2].captured
