"""peering.toml: what is read, what is refused and in which words, and what is shared with whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.config import GroupFile, load_group
from federation.errors import ConfigError
from federation.identity import Fingerprint
from federation.peering import load_peering
from federation.trust.keys import StatementKey

KEYS = [
    str(StatementKey.of(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32))) for i in range(3)
]

GOOD = f"""\
federation = "demo"
[self]
group = "east"
credentials = "credentials"
[[peers]]
name = "west"
address = "127.0.0.1:7502"
key = "{KEYS[0]}"
export = ["chat", "code"]
import = ["chat"]
[[peers]]
name = "north"
address = "north.example:7602"
key_file = "north.pub"
next_key = "{KEYS[2]}"
export = ["*"]
"""

GROUP = """\
name = "east"
data_dir = "data"
port_base = 7400
[stores]
dram = "16 MiB"
"""
for _name in ("chat", "code", "math"):
    GROUP += f"""\
[namespaces.{_name}]
model = "{_name}-7b"
revision = "1"
engine = "sglang-hicache"
kv_dtype = "bf16"
block_tokens = 64
layout = "page_first"
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    (tmp_path / "north.pub").write_text(f"{KEYS[1]}\n")

    def _write(text: str) -> Path:
        path = tmp_path / "peering.toml"
        path.write_text(text)
        return path

    return _write


@pytest.fixture
def group(tmp_path: Path) -> GroupFile:
    path = tmp_path / "group.toml"
    path.write_text(GROUP)
    return load_group(path)


def test_a_good_file(write: Write, tmp_path: Path) -> None:
    peering = load_peering(write(GOOD))

    assert peering.federation == "demo"
    assert peering.own.group == "east"
    assert peering.own.credentials == tmp_path / "credentials"
    assert peering.path == tmp_path / "peering.toml"
    west, north = peering.peers
    assert (west.name, west.address) == ("west", "127.0.0.1:7502")
    assert [str(key) for key in west.keys] == [KEYS[0]]
    assert [str(key) for key in north.keys] == [KEYS[1], KEYS[2]]
    assert (west.exports, west.imports) == (("chat", "code"), ("chat",))
    assert peering.peer("north") is north
    assert peering.peer("south") is None


def test_a_peer_with_several_gateways(write: Write) -> None:
    text = GOOD.replace('address = "127.0.0.1:7502"', 'addresses = ["west-1:7502", "west-2:07502"]')
    west, north = load_peering(write(text)).peers
    assert west.gateways == ("west-1:7502", "west-2:7502")
    assert north.gateways == ("north.example:7602",)


def test_key_files_need_not_exist_yet_if_they_are_not_read(write: Write, tmp_path: Path) -> None:
    (tmp_path / "north.pub").unlink()
    peering = load_peering(write(GOOD), read_keys=False)
    assert [str(key) for key in peering.peers[1].keys] == [KEYS[2]]


def test_sharing_is_by_fingerprint(write: Write, group: GroupFile) -> None:
    sharing = load_peering(write(GOOD)).check_against(group)
    chat, code, math = (group.namespaces[n].fingerprint() for n in ("chat", "code", "math"))

    assert sharing.exports("west") == {chat, code}
    assert sharing.imports("west") == {chat}
    assert sharing.exports("north") == {chat, code, math}
    assert sharing.imports("north") == frozenset[Fingerprint]()
    # A group that is no peer gets nothing, whatever it is called.
    assert sharing.exports("south") == sharing.imports("south") == frozenset()


WEST_KEY = f'key = "{KEYS[0]}"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('federation = "demo"', "", "peering.toml: federation: is missing: add it"),
        (
            'federation = "demo"',
            'federation = "Demo.1"',
            "peering.toml:1: federation: 'Demo.1' is not a federation's id: a lower-case letter, "
            "then at most 30 of a-z, 0-9, -",
        ),
        ('group = "east"', 'group = "East"', "3: self.group: 'East' is not a group's name"),
        (
            'group = "east"',
            'grup = "east"',
            'self.grup: is not a known key (did you mean "group"?)',
        ),
        ('credentials = "credentials"', "credentials = 1", "4: self.credentials: 1 is not a path"),
        ('name = "west"', 'name = "-"', "6: peers.0.name: '-' is not a group's name"),
        (
            'name = "west"',
            'name = "east"',
            'peers: a peer is named "east", which is this group itself',
        ),
        ('name = "west"', 'name = "north"', 'peers: two peers have the name "north"'),
        (
            "127.0.0.1:7502",
            "NORTH.example:7602",
            'peers: two peers have the address "north.example:7602" (west, north): '
            "each group has its own",
        ),
        (
            KEYS[0],
            KEYS[1],
            f'peers: two peers have the key "{KEYS[1]}" (west, north): each group has its own',
        ),
        (
            "127.0.0.1:7502",
            "127.0.0.1",
            "7: peers.0.address: '127.0.0.1' has no port: write \"host:port\"",
        ),
        ('address = "127.0.0.1:7502"', "", 'peers.0: peer "west" has no address: add address ='),
        (
            'address = "127.0.0.1:7502"',
            'address = "a:1"\naddresses = ["b:1"]',
            'peers.0: peer "west" has both address and addresses: remove one',
        ),
        (
            'address = "127.0.0.1:7502"',
            'addresses = ["a:1", "A:1"]',
            '7: peers.0.addresses: "a:1" is listed twice: each gateway has its own',
        ),
        ('address = "127.0.0.1:7502"', 'addresses = ["a"]', "'a' has no port: write"),
        (
            'address = "127.0.0.1:7502"',
            'addresses = ["a:1", "a:2", "a:3", "a:4", "a:5"]',
            "7: peers.0.addresses: 5 addresses are more than 4: a group has at most so many gateways",
        ),
        (
            'address = "127.0.0.1:7502"',
            'addresses = ["a:1", "north.example:7602"]',
            'peers: two peers have the address "north.example:7602" (west, north): ',
        ),
        ("127.0.0.1:7502", "127.0.0.1:0", "'0' is not a port in 1..65535"),
        ("127.0.0.1:7502", "127.0.0.1:http", "'http' is not a port in 1..65535"),
        ("127.0.0.1:7502", "127.0.0.256:7502", "'127.0.0.256' is not an IPv4 address"),
        ("127.0.0.1:7502", "grpc://west:7502", "'grpc://west' is not an IPv4 address or host name"),
        (
            WEST_KEY,
            "",
            'peers.0: peer "west" has no key: add key = "ed25519:..." or key_file (the line, or '
            "the file, identity.pub of that group)",
        ),
        (
            WEST_KEY,
            WEST_KEY + '\nkey_file = "north.pub"',
            'peers.0: peer "west" has both key and key_file: remove one',
        ),
        (
            WEST_KEY,
            'key = "AAAA"',
            '8: peers.0.key: a key is written "ed25519:BASE64", as in the peer\'s identity.pub, '
            "not 'AAAA'",
        ),
        (WEST_KEY, "key = 7", 'peers.0.key: a key is text, "ed25519:BASE64", not int'),
        (WEST_KEY, 'key = "ed25519:?"', "what follows ed25519: is not base64: copy the whole line"),
        (WEST_KEY, 'key = "ed25519:AAAA"', "an Ed25519 public key has 32 bytes, not 3"),
        ('"north.pub"', '"none.pub"', "none.pub cannot be read: No such file or directory"),
        ('"north.pub"', '"."', "cannot be read: Is a directory"),
        ('"north.pub"', '"private.pem"', "is not a public key: this is a PRIVATE key: it stays"),
        ('export = ["chat", "code"]', 'export = "chat"', "peers.0.export: must be a list"),
        ('"chat", "code"', '"chat", "chat"', 'peers.0.export: "chat" is listed twice'),
        (
            '"chat", "code"',
            '"chat", "*"',
            'peers.0.export: "*" already means every namespace: remove the other names',
        ),
        ('["chat"]', "[1]", "10: peers.0.import.0: must be text"),
        ("[[peers]]", "[[peers", "is not TOML"),
    ],
)
def test_refused(write: Write, tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "private.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load_peering(write(GOOD.replace(old, new, 1)))
    assert message in str(caught.value)
    assert "peering.toml" in str(caught.value)


def test_all_problems_are_told_at_once(write: Write) -> None:
    text = GOOD.replace("127.0.0.1:7502", "nowhere").replace('"north.pub"', '"none.pub"')
    with pytest.raises(ConfigError, match="2 problems") as caught:
        load_peering(write(text))
    assert "peers.0.address" in str(caught.value)
    assert "peers.1.key_file" in str(caught.value)


def test_too_many_peers(write: Write) -> None:
    text = GOOD[: GOOD.index("[[peers]]")]
    for index in range(64):
        key = StatementKey.of(Ed25519PrivateKey.from_private_bytes(bytes([index + 9]) * 32))
        text += f'[[peers]]\nname = "g{index}"\naddress = "10.0.0.1:{index + 1}"\nkey = "{key}"\n'
    with pytest.raises(ConfigError, match="64 peers are more than 63"):
        load_peering(write(text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_peering(tmp_path / "peering.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'group = "east"',
            'group = "eastern"',
            'peering.toml:3: self.group: is "eastern", but group.toml says name = "east"',
        ),
        (
            '"chat", "code"',
            '"chta"',
            'peering.toml:9: peers.0.export: "chta" is not one of [namespaces] in group.toml '
            '(did you mean "chat"?)',
        ),
        (
            'import = ["chat"]',
            'import = ["x"]',
            'peering.toml:10: peers.0.import: "x" is not one of [namespaces] in group.toml '
            "(it has: chat, code, math)",
        ),
        (
            '"127.0.0.1:7502"',
            '"127.0.0.1:7402"',
            "peering.toml:7: peers.0.address: 127.0.0.1:7402 is this group's own gateway (listen and "
            'port_base + 2 of group.toml), and not one of "west": write that peer\'s',
        ),
    ],
)
def test_what_does_not_fit_group_toml(
    write: Write, group: GroupFile, old: str, new: str, message: str
) -> None:
    peering = load_peering(write(GOOD.replace(old, new, 1)))
    with pytest.raises(ConfigError) as caught:
        peering.check_against(group)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("listen", ["0.0.0.0", "EAST.example"])
def test_an_own_address_among_those_of_a_peer(write: Write, tmp_path: Path, listen: str) -> None:
    path = tmp_path / "group.toml"
    path.write_text(f'{GROUP}[gateway]\nlisten = "{listen}"\n')
    own = "127.0.0.1:7402" if listen == "0.0.0.0" else "east.example:7402"
    text = GOOD.replace('address = "127.0.0.1:7502"', f'addresses = ["127.0.0.1:7502", "{own}"]')
    with pytest.raises(ConfigError, match=rf"peers\.0\.addresses: {own} is this group's own"):
        load_peering(write(text)).check_against(load_group(path))


@pytest.mark.parametrize("which", [1, 2])
def test_an_own_key_among_those_of_a_peer(write: Write, tmp_path: Path, which: int) -> None:
    path = write(GOOD)
    (tmp_path / "credentials").mkdir()
    pub = tmp_path / "credentials" / "identity.pub"
    pub.write_text("not a key")
    assert load_peering(path).peers, "the credentials are told by who loads them"
    pub.write_text(f"{KEYS[which]}\n")
    with pytest.raises(ConfigError) as caught:
        load_peering(path)
    said = f'peers: peer "north" has the key {KEYS[which]}, which is this group\'s own: write that'
    assert said in str(caught.value)
    assert load_peering(path, read_keys=False).peers


def test_all_that_does_not_fit_is_told_at_once(write: Write, group: GroupFile) -> None:
    text = GOOD.replace('group = "east"', 'group = "eastern"').replace('"chat"', '"x"')
    with pytest.raises(ConfigError, match="3 problems"):
        load_peering(write(text)).check_against(group)


@pytest.mark.parametrize("name", ["east", "west"])
def test_the_worked_example_fits_together(name: str) -> None:
    folder = Path(__file__).parents[2] / "deploy" / "two-datacenters"
    own = load_group(folder / name / "group.toml")
    peering = load_peering(folder / name / "peering.toml", read_keys=False)
    sharing = peering.check_against(own)
    (peer,) = peering.peers
    other = load_group(folder / peer.name / "group.toml")

    assert own.gateway.peering == peering.path
    assert peer.address == f"{other.gateway.listen}:{other.ports.peers}"
    assert peer.key_file is not None
    assert peer.key_file.path == folder / peer.name / "credentials" / "identity.pub"
    # Both sides call the same bytes by the same name, or nothing would be shared.
    assert sharing.exports(peer.name) == {other.namespaces["demo"].fingerprint()}
    assert own.namespaces["demo"].block_tokens == 512
