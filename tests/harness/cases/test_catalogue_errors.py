"""An error in a YAML file is one sentence: the file, the layer, the field, its value, and the values allowed."""

import json

import pytest

from harness.cases import catalogue, yaml_file
from harness.cases.catalogue import CatalogueError, load_network, load_sweep

FINE = {"name": "ok", "hw": "7", "c": "8", "m": "9", "k": "3", "pad": "1"}


def line(**changes):
    """A layer as YAML text, all fine but for the changes; None leaves a field out."""
    fields = {**FINE, **changes}
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items() if value is not None) + "}"


def layers(*lines):
    return "layers:\n" + "".join(f"  - {text}\n" for text in lines)


def message(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CatalogueError) as error:
        load_sweep(path)
    assert str(error.value).startswith(str(path))
    return str(error.value).removeprefix(str(path))


def test_the_line_that_the_cases_change_is_fine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(layers(line()))
    assert [case.label for case in load_sweep(path).cases] == ["7-1-3-9-8"]


WRONG_LAYERS = {
    "unknown key": (line(strides=2), ["unknown key 'strides'", "k, pad, stride, dilation, groups, count, set"]),
    "misspelt key": (line(k=None, kk=3), ["unknown key 'kk'", "k, pad"]),
    "key that is no text": (line(**{"5": 1}), ["unknown key 5", "name, hw"]),
    "missing": (line(m=None), ["m is missing", "whole number of at least 1"]),
    "missing size": (line(hw=None), ["hw is missing", "hw alone or both h and w"]),
    "text": (line(c="many"), ["c is 'many'", "whole number"]),
    "number in quotes": (line(hw='"7"'), ["hw is '7'", "whole number"]),
    "truth value": (line(c="true"), ["c is True", "whole number"]),
    "fraction": (line(m="9.0"), ["m is 9.0", "whole number"]),
    "nothing": (line(c=""), ["c is empty", "whole number"]),
    "zero": (line(m=0), ["m is 0", "at least 1"]),
    "negative": (line(hw=-7), ["hw is -7", "at least 1"]),
    "zero height": (line(hw=None, h=0, w=3), ["h is 0", "at least 1"]),
    "no stride": (line(stride=0), ["stride is 0", "at least 1"]),
    "groups that do not divide": (line(groups=2), ["groups is 2", "must divide m, which is 9"]),
    "dilation": (line(hw=3, dilation=3), ["the filter with its dilation is 7", "padded input, which is 5x5"]),
    "filter too large": (line(hw=2, k=5), ["k is 5", "4x4"]),
    "filter too large for one axis": (line(hw=None, h=9, w=2, k=5), ["k is 5", "11x4"]),
    "negative pad": (line(pad=-1), ["pad is -1", "at least 0"]),
    "pad as large as the filter": (line(pad=3), ["pad is 3", "smaller than k, which is 3"]),
    "hw and h": (line(h=5), ["hw is 7", "h is 5", "hw alone or both h and w"]),
    "hw and h and w": (line(h=5, w=6), ["hw is 7", "h is 5", "w is 6", "hw alone"]),
    "h alone": (line(hw=None, h=5), ["h is 5", "both h and w"]),
    "negative count": (line(count=-1), ["count is -1", "at least 0"]),
    "unknown set": (line(set="mine"), ["set is 'mine'", "paper, network, strided, grouped or fully_connected"]),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_LAYERS.values(), ids=WRONG_LAYERS.keys())
def test_a_wrong_layer_is_named(tmp_path, text, parts):
    other = line(name="other", c=1)
    told = message(tmp_path, layers(other, text))
    assert told.startswith(": layer 'ok': ")
    assert [part for part in parts if part not in told] == []
    assert_one_sentence(told)


def assert_one_sentence(told):
    assert "\n" not in told
    assert "pydantic" not in told and "type=" not in told and "Traceback" not in told
    assert len(told) < 300


def test_a_layer_without_a_name_is_told_by_its_number(tmp_path):
    told = message(tmp_path, layers(line(), line(name=None, m=0)))
    assert told.startswith(": layer 2: m is 0")


def test_a_layer_with_two_names_is_told_by_both(tmp_path):
    assert message(tmp_path, layers(line(name="[a, b]", m=0))).startswith(": layer 'a, b': m is 0")


OWN = layers(line())

WRONG_FILES = {
    "layer that is no mapping": (layers("conv2"), ["layer 1", "'conv2'", "mapping"]),
    "name twice": (layers(line(), line(c=1)), ["layers", "name 'ok'", "twice"]),
    "name twice in one layer": (layers(line(name="[a, a]")), ["name 'a'", "twice"]),
    "shape twice": (layers(line(), line(name="b")), ["'b'", "shape of 'ok'", "once", "count"]),
    "shape twice, as h and w": (layers(line(), line(name="b", hw=None, h=7, w=7)), ["'b'", "shape of 'ok'"]),
    "number for a name": (layers(line(name=3)), ["layer 1", "name is 3", "text"]),
    "name with a semicolon": (layers(line(name="a;b")), ["name has 'a;b'", "without ';'"]),
    "no name in a list": (layers(line(name="[]")), ["layer 1", "name is []", "text"]),
    "no layers": ("layers: []", ["layers is []", "one or more"]),
    "empty layers": ("layers:", ["layers is empty", "list"]),
    "text for layers": ("layers: conv2", ["layers is 'conv2'", "list"]),
    "misspelt layers": ("layer: []", ["unknown key 'layer'", "networks", "layers"]),
    "neither layers nor networks": ("runs: 3", ["networks is missing", "layers"]),
    "batch size twice": (OWN + "batch_sizes: [1, 8, 1]", ["batch_sizes is [1, 8, 1]", "different"]),
    "batch size of zero": (OWN + "batch_sizes: [1, 0]", ["batch_sizes has 0", "at least 1"]),
    "batch size as text": (OWN + "batch_sizes: ['8']", ["batch_sizes has '8'", "whole number"]),
    "no batch sizes": (OWN + "batch_sizes: []", ["batch_sizes is []", "list"]),
    "one batch size": (OWN + "batch_sizes: 8", ["batch_sizes is 8", "list"]),
    "no runs": (OWN + "runs: 0", ["runs is 0", "from 1 to 99"]),
    "too many runs": (OWN + "runs: 100", ["runs is 100", "from 1 to 99"]),
    "runs as truth value": (OWN + "runs: yes", ["runs is True", "from 1 to 99"]),
    "no workspace": (OWN + "workspace_limit_mib: 0", ["workspace_limit_mib is 0", "at least 1"]),
    "unknown key": (OWN + "seed: 1", ["unknown key 'seed'", "layers", "batch_sizes", "runs", "workspace_limit_mib"]),
    "unknown network": (
        "networks: [vgg19, vgg16]",
        ["networks", "'vgg16'", "must be one of", "alexnet", "googlenet", "vgg19", "path"],
    ),
    "network twice": ("networks: [vgg19, vgg19]", ["networks is ['vgg19', 'vgg19']", "different"]),
    "text for networks": ("networks: vgg19", ["networks is 'vgg19'", "list"]),
    "no networks": ("networks: []", ["networks is []", "list"]),
    "unknown sets": (
        "networks: [vgg19]\nsets: [all]",
        ["sets has 'all'", "paper, network, strided, grouped, fully_connected"],
    ),
    "sets without layers": ("networks: [vgg19]\nsets: [network]", ["sets is ['network']", "networks have"]),
    "unknown layer to keep": ("networks: [alexnet]\nlayers: [conv7]", ["layer 'conv7'", "conv2, conv3, conv4, conv5"]),
    "layers beside networks": ("networks: [alexnet]\n" + OWN, ["layers has {", "names", "networks"]),
    "broken YAML": ("layers:\n  - {name: a\n  - b", ["line 3", "not valid YAML"]),
    "key twice": (layers(line(), "{hw: 7, hw: 9}"), ["line 3", "'hw'", "twice"]),
    "key that is no key": ("{[1]: 2}", ["line 1", "not valid YAML"]),
    "impossible date": ("layers: 2024-99-99", ["not valid YAML"]),
    "control character": ("layers: \x01", ["not valid YAML"]),
    "no text": (b"\xff\xfe\x00", ["not valid YAML"]),
    "list at the top": ("- {hw: 7}", ["[{'hw': 7}]", "mapping"]),
    "empty file": ("", ["empty", "mapping"]),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_a_wrong_file_is_named(tmp_path, text, parts):
    told = message(tmp_path, text)
    assert [part for part in parts if part not in told] == []
    assert_one_sentence(told)


@pytest.mark.parametrize("load", [load_sweep, load_network])
def test_a_missing_file_is_named(tmp_path, load):
    with pytest.raises(CatalogueError, match=r"nowhere\.yaml' is not found: must be one of .*, or the path of"):
        load(tmp_path / "nowhere.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(yaml_file, "read_regular", refuse)
    with pytest.raises(CatalogueError, match=r"mine\.yaml cannot be read: Permission denied"):
        load_sweep(path)


def test_a_wrong_network_file_is_named_and_not_the_sweep_that_asks_for_it(tmp_path):
    (tmp_path / "net.yaml").write_text(layers(line(m=0)))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("networks: [net.yaml]")
    with pytest.raises(CatalogueError, match=r"net\.yaml: layer 'ok': m is 0"):
        load_sweep(sweep)


def test_two_networks_of_one_name_are_refused(tmp_path):
    (tmp_path / "vgg19.yaml").write_text(OWN)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("networks: [vgg19, ./vgg19.yaml]")
    with pytest.raises(CatalogueError, match=r"sweep\.yaml: networks has './vgg19\.yaml'.*'vgg19'"):
        load_sweep(sweep)


BEYOND = {
    "timestamp tag": ("layers: !!timestamp abc", ["line 1", "a tag (!) is not read here"]),
    "truth value tag": ("layers: !!bool abc", ["a tag (!)"]),
    "number tag": ('layers: !!int ""', ["a tag (!)"]),
    "set tag": ("layers: !!set [a]", ["a tag (!)"]),
    "tag on a mapping": ("layers:\n  - !!python/object:os.system {a: 1}", ["line 2", "a tag (!)"]),
    "nested brackets": ("layers: " + "[" * 900 + "]" * 900, ["nested more than 20 deep"]),
    "nested mappings": ("layers: " + "{a: " * 100_000, ["nested more than 20 deep"]),
    "nested by indentation": ("".join(f"{' ' * n}a:\n" for n in range(60)) + " " * 60 + "b", ["nested more than 20"]),
    "long number": (layers(line(c="9" * 10_000)), ["line 2", "10000 characters: at most 500"]),
    "large number": (layers(line(c="9" * 400)), ["c is a number of 1329 bits", "at most 2147483647"]),
    "size beyond a kernel's": (layers(line(hw=2**31)), ["hw is 2147483648", "at most 2147483647"]),
    "long name": (layers(line(name="n" * 5000)), ["5000 characters"]),
    "rather long name": (layers(line(name="n" * 400)), ["up to 200 long"]),
    "control character in a name": (layers(line(name='"a\\e[31mb"')), ["name has 'a\\x1b[31mb'", "control characters"]),
    "line end in a name": (layers(line(name='"a\\u2028b"')), ["name has 'a\\u2028b'"]),
    "formula in a name": (layers(line(name="'=1+1'")), ["name has '=1+1'", "begins with none of ="]),
    "command in a name": (layers(line(name="'@SUM(A1)'")), ["name has '@SUM(A1)'"]),
    "NUL in a name": (layers(line(name='"a\\0b"')), ["name has 'a\\x00b'", "control characters"]),
    "lone surrogate in a name": (layers(line(name='"a\\ud800b"')), ["line 2 is not valid YAML"]),
    "NUL in a network": ('networks: ["a\\0b"]', ["'a\\x00b' is not found"]),
    "bomb of aliases": (
        "a: &a [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else '*a'}, x]\n" for n in range(30)),
        ["line 2", "an alias (*) is not read here"],
    ),
    "many unknown keys": ("".join(f"k{n}: 1\n" for n in range(5_000)), ["unknown key 'k0'"]),
    "large mapping at the top": ("[" + ", ".join("abcdefgh" for _ in range(50_000)) + "]", ["must be a mapping"]),
}


@pytest.mark.parametrize(("text", "parts"), BEYOND.values(), ids=BEYOND.keys())
def test_what_goes_beyond_plain_data_is_one_sentence(tmp_path, text, parts):
    told = message(tmp_path, text)
    assert [part for part in parts if part not in told] == []
    assert_one_sentence(told)
    assert told.isprintable()


def test_many_layers_are_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(layers(*(line(name=f"n{n}", c=n + 1) for n in range(5_000))))
    assert len(load_sweep(path).cases) == 5_000


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(layers(*(line(name=f"n{n}", c=n + 1) for n in range(30_000))))
    with pytest.raises(CatalogueError, match=r"mine\.yaml has more than 1048576 bytes.*: divide it"):
        load_sweep(path)


@pytest.mark.parametrize(
    "name", ["..yaml", "...yaml", "a;b.yaml", "=1+1.yaml", "a\nb.yaml", "n" * 210 + ".yaml", ".yaml"]
)
def test_the_name_of_a_file_is_checked_as_other_names_are(tmp_path, name):
    (tmp_path / name).write_text(OWN)
    (tmp_path / "sweep.yaml").write_text(f"networks: [{json.dumps(name)}]")
    for config in (tmp_path / name, tmp_path / "sweep.yaml"):
        with pytest.raises(CatalogueError, match=r"must be a text without .*; rename the file"):
            load_sweep(config)


@pytest.mark.parametrize("name", ["n" * 300, "", "a\0b", "/dev/zero", "/etc"])
def test_what_is_no_file_is_not_found(name):
    with pytest.raises(CatalogueError, match="is not found: must be one of"):
        load_sweep(name)


def test_more_cases_than_memory_holds_are_refused_before_they_are_made(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    many = layers(*(f"{{hw: 7, c: {n}, m: 9, k: 3, pad: 1}}" for n in range(1, 9_001)))
    path.write_text(f"{many}batch_sizes: {list(range(1, 90_001))}".replace(", ", ","))
    monkeypatch.setattr(catalogue, "Case", None)
    with pytest.raises(CatalogueError, match="810000000 cases, 9000 layers at 90000 batch sizes: must be at most"):
        load_sweep(path)
