"""A wrong YAML file is refused in one line that names the file, the layer and the field or value."""

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


WRONG_LAYERS = {
    "'strides'": line(strides=2),
    "'kk'": line(k=None, kk=3),
    "unknown key 5": line(**{"5": 1}),
    "m is missing": line(m=None),
    "hw is missing": line(hw=None),
    "c is 'many'": line(c="many"),
    "hw is '7'": line(hw='"7"'),
    "c is True": line(c="true"),
    "m is 9.0": line(m="9.0"),
    "c is empty": line(c=""),
    "m is 0": line(m=0),
    "hw is -7": line(hw=-7),
    "h is 0": line(hw=None, h=0, w=3),
    "stride is 0": line(stride=0),
    "groups is 2": line(groups=2),  # of nine filters
    "dilation is 7": line(hw=3, dilation=3),  # the filter with its dilation, in an input of 5x5
    "4x4": line(hw=2, k=5),  # a filter that is too large
    "11x4": line(hw=None, h=9, w=2, k=5),
    "pad is -1": line(pad=-1),
    "pad is 3": line(pad=3),
    "k is [1, 7, 1]": line(k="[1, 7, 1]"),
    "k is [7, 0]": line(k="[7, 0]", pad=0),
    "k is [True, 3]": line(k="[true, 3]"),
    "k is '1x7'": line(k="1x7"),
    "pad is []": line(pad="[]"),
    "pad is [0, -1]": line(pad="[0, -1]"),
    "1x7": line(k="[1, 7]"),  # a padding that is too large for one row
    "9x4": line(hw=None, h=9, w=2, k="[1, 5]", pad="[0, 1]"),  # the columns of the filter are too many
    "hw is 7": line(h=5),
    "w is 6": line(h=5, w=6),
    "h is 5": line(hw=None, h=5),
    "count is -1": line(count=-1),
    "set is 'mine'": line(set="mine"),
    "batch_sizes is []": line(batch_sizes="[]"),
    "batch_sizes has 0": line(batch_sizes="[4, 0]"),
    "batch_sizes is [4, 4]": line(batch_sizes="[4, 4]"),
    "1329 bits": line(c="9" * 400),
    "2147483648": line(hw=2**31),  # beyond a kernel's
}


@pytest.mark.parametrize(("value", "text"), WRONG_LAYERS.items(), ids=WRONG_LAYERS.keys())
def test_a_wrong_layer_is_named(tmp_path, value, text):
    told = message(tmp_path, layers(line(name="other", c=1), text))
    assert told.startswith(": layer 'ok': ") and value in told
    assert_one_sentence(told)


def assert_one_sentence(told):
    assert told.isprintable() and len(told) < 300
    assert "pydantic" not in told and "type=" not in told and "Traceback" not in told


@pytest.mark.parametrize(("name", "told"), [(None, "layer 2"), ("[a, b]", "layer 'a, b'")])
def test_a_layer_is_told_by_its_number_or_all_of_its_names(tmp_path, name, told):
    assert message(tmp_path, layers(line(), line(name=name, m=0))).startswith(f": {told}: m is 0")


OWN = layers(line())
ALIASES = "a: &a [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else '*a'}, x]\n" for n in range(30))

WRONG_FILES = [
    ("layer 1", layers("conv2")),
    ("name 'ok'", layers(line(), line(c=1))),
    ("name 'a'", layers(line(name="[a, a]"))),
    ("shape of 'ok'", layers(line(), line(name="b"))),
    ("shape of 'ok'", layers(line(), line(name="b", k="[3, 3]", pad="[1, 1]"))),
    ("shape of 'ok'", layers(line(), line(name="b", hw=None, h=7, w=7))),
    ("name is 3", layers(line(name=3))),
    ("'a;b'", layers(line(name="a;b"))),
    ("name is []", layers(line(name="[]"))),
    ("layers is []", "layers: []"),
    ("layers is empty", "layers:"),
    ("layers is 'conv2'", "layers: conv2"),
    ("'layer'", "layer: []"),
    ("networks is missing", "runs: 3"),
    ("[1, 8, 1]", OWN + "batch_sizes: [1, 8, 1]"),
    ("batch_sizes has 0", OWN + "batch_sizes: [1, 0]"),
    ("batch_sizes has '8'", OWN + "batch_sizes: ['8']"),
    ("batch_sizes is []", OWN + "batch_sizes: []"),
    ("batch_sizes is 8", OWN + "batch_sizes: 8"),
    ("runs is 0", OWN + "runs: 0"),
    ("runs is 100", OWN + "runs: 100"),
    ("runs is True", OWN + "runs: yes"),
    ("workspace_limit_mib is 0", OWN + "workspace_limit_mib: 0"),
    ("'seed'", OWN + "seed: 1"),
    ("'vgg16'", "networks: [vgg19, vgg16]"),
    ("['vgg19', 'vgg19']", "networks: [vgg19, vgg19]"),
    ("networks is 'vgg19'", "networks: vgg19"),
    ("networks is []", "networks: []"),
    ("sets has 'all'", "networks: [vgg19]\nsets: [all]"),
    ("['network']", "networks: [vgg19]\nsets: [network]"),  # there is no such layer
    ("'conv7'", "networks: [alexnet]\nlayers: [conv7]"),
    ("layers has {", "networks: [alexnet]\n" + OWN),
    ("line 3", "layers:\n  - {name: a\n  - b"),
    ("'hw'", layers(line(), "{hw: 7, hw: 9}")),  # a key twice
    ("line 1", "{[1]: 2}"),
    ("not valid YAML", "layers: 2024-99-99"),
    ("not valid YAML", "layers: \x01"),
    ("not valid YAML", b"\xff\xfe\x00"),
    ("[{'hw': 7}]", "- {hw: 7}"),
    ("mapping", ""),
    # Tags, which go beyond plain data.
    ("(!)", "layers: !!timestamp abc"),
    ("(!)", "layers: !!bool abc"),
    ("(!)", 'layers: !!int ""'),
    ("(!)", "layers: !!set [a]"),
    ("line 2", "layers:\n  - !!python/object:os.system {a: 1}"),
    ("more than 20 deep", "layers: " + "[" * 900 + "]" * 900),
    ("more than 20 deep", "layers: " + "{a: " * 100_000),
    ("more than 20 deep", "".join(f"{' ' * n}a:\n" for n in range(60)) + " " * 60 + "b"),
    ("10000 characters", layers(line(c="9" * 10_000))),
    ("5000 characters", layers(line(name="n" * 5000))),
    ("200 long", layers(line(name="n" * 400))),
    ("'a\\x1b[31mb'", layers(line(name='"a\\e[31mb"'))),  # control characters
    ("'a\\u2028b'", layers(line(name='"a\\u2028b"'))),
    ("'=1+1'", layers(line(name="'=1+1'"))),  # a formula of a spreadsheet
    ("'@SUM(A1)'", layers(line(name="'@SUM(A1)'"))),
    ("'a\\x00b'", layers(line(name='"a\\0b"'))),
    ("line 2", layers(line(name='"a\\ud800b"'))),
    ("'a\\x00b'", 'networks: ["a\\0b"]'),
    ("(*)", ALIASES),
    ("'k0'", "".join(f"k{n}: 1\n" for n in range(5_000))),
    ("mapping", "[" + ", ".join("abcdefgh" for _ in range(50_000)) + "]"),
]


@pytest.mark.parametrize(("value", "text"), WRONG_FILES, ids=[value for value, _ in WRONG_FILES])
def test_a_wrong_file_is_named(tmp_path, value, text):
    told = message(tmp_path, text)
    assert value in told
    assert_one_sentence(told)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(yaml_file, "read_regular", refuse)
    with pytest.raises(CatalogueError, match="Permission denied"):
        load_sweep(path)


def test_a_wrong_network_file_is_named_and_not_the_sweep_that_asks_for_it(tmp_path):
    (tmp_path / "net.yaml").write_text(layers(line(m=0)))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("networks: [net.yaml]")
    with pytest.raises(CatalogueError, match=r"net\.yaml: layer 'ok': m is 0"):
        load_sweep(sweep)


def test_a_network_s_layers_have_no_batch_sizes(tmp_path):
    (tmp_path / "net.yaml").write_text(layers(line(batch_sizes="[4]")))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("networks: [net.yaml]")
    with pytest.raises(CatalogueError, match="unknown key 'batch_sizes': must be one of name"):
        load_sweep(sweep)


def test_two_networks_of_one_name_are_refused(tmp_path):
    (tmp_path / "vgg19.yaml").write_text(OWN)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("networks: [vgg19, ./vgg19.yaml]")
    with pytest.raises(CatalogueError, match=r"'./vgg19\.yaml'"):
        load_sweep(sweep)


@pytest.mark.parametrize("count", [1, 5_000])
def test_few_and_many_layers_are_read(tmp_path, count):
    path = tmp_path / "mine.yaml"
    path.write_text(layers(*(line(name=f"n{n}", c=n + 1) for n in range(count))))
    assert len(load_sweep(path).cases) == count


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(layers(*(line(name=f"n{n}", c=n + 1) for n in range(30_000))))
    with pytest.raises(CatalogueError, match="1048576"):
        load_sweep(path)


@pytest.mark.parametrize(
    "name", ["..yaml", "...yaml", "a;b.yaml", "=1+1.yaml", "a\nb.yaml", "n" * 210 + ".yaml", ".yaml"]
)
def test_the_name_of_a_file_is_checked_as_other_names_are(tmp_path, name):
    (tmp_path / name).write_text(OWN)
    (tmp_path / "sweep.yaml").write_text(f"networks: [{json.dumps(name)}]")
    for config in (tmp_path / name, tmp_path / "sweep.yaml"):
        with pytest.raises(CatalogueError, match="rename"):
            load_sweep(config)


@pytest.mark.parametrize("load", [load_sweep, load_network])
@pytest.mark.parametrize("name", ["nowhere.yaml", "n" * 300, "", "a\0b", "/dev/zero", "/etc"])
def test_what_is_no_file_is_not_found(name, load):
    with pytest.raises(CatalogueError, match="not found"):
        load(name)


def test_more_cases_than_memory_holds_are_refused_before_they_are_made(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    many = layers(*(f"{{hw: 7, c: {n}, m: 9, k: 3, pad: 1}}" for n in range(1, 9_001)))
    path.write_text(f"{many}batch_sizes: {list(range(1, 90_001))}".replace(", ", ","))
    monkeypatch.setattr(catalogue, "Case", None)
    with pytest.raises(CatalogueError, match="810000000 cases"):
        load_sweep(path)
