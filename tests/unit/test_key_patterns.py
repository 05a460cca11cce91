"""Key patterns: what they match, what they refuse, and that two with a key in common are found out."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest

from federation.errors import ConfigError
from federation.identity import Envelope, stored_key
from federation.keys.namespace import KEYS_MAX, PATTERNS_MAX, Namespace, overlaps
from federation.keys.naming import Naming
from federation.keys.pattern import FIELDS_MAX, HEX_MAX, PATTERN_CHARS_MAX, WORDS_MAX

FIELDS: dict[str, Any] = {
    "model": "org/demo-7b",
    "revision": "r1",
    "engine": "e",
    "kv_dtype": "bf16",
    "block_tokens": 64,
    "layout": "page_first",
}
SHA = "0123456789abcdef" * 4


def namespace(*keys: str, **changes: Any) -> Namespace:
    return Namespace(**{**FIELDS, **changes, "keys": keys})


def matches(space: Namespace, key: str) -> bool:
    return any(pattern.matches(key) for pattern in space.patterns)


@pytest.mark.parametrize(
    ("scheme", "changes", "right", "wrong"),
    [
        (
            "sglang-hicache",
            {"tp": 2},
            [f"org-demo-7b_{SHA}_0_k", f"org-demo-7b_{SHA}_1_v"],
            [
                f"org-demo-7b_{SHA}_2_k",  # a rank that this envelope does not have
                f"org-demo-7b_{SHA}_0_0_k",
                f"org-demo-7b_{SHA[1:]}_0_k",
                f"org/demo-7b_{SHA}_0_k",
                f"t_org-demo-7b_{SHA}_0_k",
                f"org-demo-7b_{SHA}__k",
            ],
        ),
        ("sglang-hicache:t", {}, [f"t_org-demo-7b_{SHA}_0_k"], [f"org-demo-7b_{SHA}_0_k"]),
        (
            "sglang-hicache",
            {"pp": 2},
            [f"org-demo-7b_{SHA}_0_1_k", f"org-demo-7b_{SHA}_0_1_0_v"],
            [f"org-demo-7b_{SHA}_0_k"],
        ),
        (
            "sglang-hicache-mla",
            {"tp": 8},
            [f"org-demo-7b_{SHA}__k"],
            [f"org-demo-7b_{SHA}_0_k", f"org-demo-7b_{SHA}__v"],
        ),
        (
            "sglang-hicache-mla",
            {"pp": 2},
            [f"org-demo-7b_{SHA}_1_k", f"org-demo-7b_{SHA}_1_0_k"],
            [f"org-demo-7b_{SHA}__k", f"org-demo-7b_{SHA}_2_k"],
        ),
        (
            "vllm-mooncake",
            {"tp": 2, "cp": 2},
            [
                "demo-7b@tp_rank:1@pcp1@dcp0@pp_rank:0@group:0@ab12",
                "demo-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:11@ff",
            ],
            [
                "demo-7b@tp_rank:2@pcp0@dcp0@pp_rank:0@group:0@ab12",
                "demo-7b@tp_rank:0@pcp0@dcp1@pp_rank:0@group:0@ab12",
                "x@demo-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab12",
                "demo-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@",
            ],
        ),
        (
            "vllm-mooncake:salt",
            {},
            ["salt@demo-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab12"],
            ["demo-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab12"],
        ),
        (
            "lmcache",
            {"tp": 2},
            ["org/demo-7b@2@1@ab12@bfloat16", "org/demo-7b@2@0@-74aeb3caa8187bc7@bfloat16"],
            [
                "org/demo-7b@2@0@--ab12@bfloat16",
                "org/demo-7b@2@0@-@bfloat16",
                "org/demo-7b@-2@0@ab12@bfloat16",
                "org/demo-7b@2@2@ab12@bfloat16",
                "org/demo-7b@1@0@ab12@bfloat16",
                "org/demo-7b@2@0@ab12@half",
                "org/demo-7b@2@0@ab12@bfloat16@3",
            ],
        ),
        (
            "lmcache:team%a",
            {"kv_dtype": "fp8_e4m3"},
            ["org/demo-7b@1@0@ab12@fp8_e4m3fn@team%a", "org/demo-7b@1@0@-1@uint8@team%a"],
            ["org/demo-7b@1@0@ab12@fp8_e4m3fn", "org/demo-7b@1@0@ab12@fp8_e5m2@team%a"],
        ),
        (
            "lmcache-mla",
            {"tp": 8, "kv_dtype": "fp8_e5m2"},
            ["org/demo-7b@1@0@ab12@uint8", "org/demo-7b@1@0@-ab12@fp8_e5m2"],
            ["org/demo-7b@8@0@ab12@uint8", "org/demo-7b@1@1@ab12@uint8"],
        ),
        (
            "kv.{model}.{revision}/{text}@{hex:4}.{a|bb}",
            {},
            ["kv.org/demo-7b.r1/any(thing)@00ff.bb"],
            [
                "kvxorg/demo-7b.r1/any@00ff.bb",
                "kv.org/demo-7b.r1/@00ff.a",
                "kv.org/demo-7b.r1/x@0f.a",
            ],
        ),
    ],
)
def test_keys_of_a_scheme(
    scheme: str, changes: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    space = namespace(scheme, **changes)
    assert [key for key in right if not matches(space, key)] == []
    assert [key for key in wrong if matches(space, key)] == []
    assert not any(matches(space, key + "\n") or matches(space, f"x{key}") for key in right)


def test_lmcache_keys_by_pythons_hash_and_by_sha256() -> None:
    space = namespace("lmcache", tp=2)
    number, digest = 0, b""
    signs = set()
    for chunk in range(64):
        tokens = tuple(range(256 * chunk, 256 * chunk + 256))
        number = hash((number, tokens))
        digest = hashlib.sha256(digest + repr(tokens).encode()).digest()
        signs.add(number < 0)
        for rank in range(2):
            assert matches(space, f"org/demo-7b@2@{rank}@{number:x}@bfloat16")
            assert matches(space, f"org/demo-7b@2@{rank}@{digest.hex()}@bfloat16")
    assert signs == {True, False}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("sglang", "neither a pattern .* nor one of: sglang-hicache, "),
        ("a{b", "without its other half"),
        ("{nosuch}/{hex}", "{nosuch} is no field: there are model, .*hex, hex:N, int, text"),
        ("{salt}/{hex}", "{salt} is empty in this namespace"),
        ("a{tp_rank}", "it matches a few keys only"),
        ("x{hex}{int}", "two fields side by side"),
        ("x{hex}a", "'a', which follows it, could be part of it"),
        ("x{1|10}0{hex}", "'0', which follows it, could be part of it"),
        ("x{hex:0}", "give the number of digits, 1 to"),
        (f"x{{hex:{HEX_MAX + 1}}}", "give the number of digits, 1 to"),
        ("{hex}/{text}", "would match keys that Moonmesh makes itself, such as '0{32}/"),
        ("{text}", "would match keys that Moonmesh makes itself"),
        ("x,{hex}", "a comma or a control character"),
        ("x{a|a}.{hex}", "a word is there twice"),
        ("x{a|}.{hex}", "each word is one or more of"),
        ("x" * (PATTERN_CHARS_MAX - 4) + "{hex}", f"1 to {PATTERN_CHARS_MAX} characters"),
        ("x{int}" * (FIELDS_MAX + 1), f"{FIELDS_MAX + 1} fields in braces are more than"),
        (f"x{{{'|'.join(f'w{n}w' for n in range(WORDS_MAX + 1))}}}", "characters"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(keys: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Namespace.of({**FIELDS, "keys": (keys,)})


def test_what_just_fits_is_taken() -> None:
    assert namespace("x" * (PATTERN_CHARS_MAX - 5) + "{hex}")
    assert namespace("x{int}" * FIELDS_MAX)
    assert matches(namespace(f"x{{hex:{HEX_MAX}}}"), "x" + "0" * HEX_MAX)
    assert matches(namespace("x{tp_rank}.{int}", tp=WORDS_MAX), f"x{WORDS_MAX - 1}.1")
    with pytest.raises(
        ConfigError, match=rf"{WORDS_MAX + 1} ranks; at most {WORDS_MAX}: use {{int}}"
    ):
        Namespace.of({**FIELDS, "tp": WORDS_MAX + 1, "keys": ("x{tp_rank}.{int}",)})
    assert namespace(*(f"x{n}/{{hex}}" for n in range(KEYS_MAX)))
    with pytest.raises(ConfigError, match="at most 16"):
        Namespace.of({**FIELDS, "keys": tuple(f"x{n}/{{hex}}" for n in range(KEYS_MAX + 1))})


def test_a_key_is_matched_in_time_that_grows_with_it_alone() -> None:
    space = namespace(*("x" + f"{{int}}{word}" * 15 + "{text}y" for word in ("a.", "b.")))
    keys = ["x" + "1" * n for n in (4_000, 400_000)]
    took = []
    for key in keys:
        began = time.process_time()
        assert not matches(space, key)
        took.append(time.process_time() - began)
    assert took[1] < 2.0, f"{took}: quadratic would be a minute"


def test_keys_are_no_part_of_the_fingerprint() -> None:
    plain = Envelope(**FIELDS)
    space = Namespace(**FIELDS, keys=("lmcache",), unattested=True)
    assert space.fingerprint() == plain.fingerprint()
    assert Namespace.of(plain).fingerprint() == plain.fingerprint()
    assert "keys" not in space.fields()


def test_two_namespaces_that_could_be_of_one_key_are_found_with_such_a_key() -> None:
    bf16, fp8 = namespace("sglang-hicache", tp=4), namespace("sglang-hicache", kv_dtype="fp8", tp=8)
    told = overlaps({"one": bf16, "two": fp8})
    assert 'would be of both "one"' in told
    assert '"two"' in told
    key = told.split("'")[1]
    assert matches(bf16, key)
    assert matches(fp8, key)
    # Told apart by a tag, by what LMCache writes into the key, or by ranks that only one has.
    assert overlaps({"one": bf16, "two": namespace("sglang-hicache:t", kv_dtype="fp8")}) == ""
    dtypes = {name: namespace("lmcache", kv_dtype=name) for name in ("bf16", "fp16", "fp8_e4m3")}
    assert overlaps(dtypes) == ""
    # A dtype that vLLM's bytes do not show is in no key, and neither are the ranks of MLA.
    fp8 = {name: namespace("lmcache", kv_dtype=name) for name in ("fp8_e4m3", "fp8_e5m2")}
    assert "@uint8' would be of both" in overlaps(fp8)
    mla = {"two": namespace("lmcache-mla", tp=2), "four": namespace("lmcache-mla", tp=4)}
    assert "@1@0@" in overlaps(mla)
    assert overlaps({"mla": mla["two"], "mha": namespace("lmcache", tp=4)}) == ""
    assert overlaps({"mha": bf16, "mla": namespace("sglang-hicache-mla", revision="r2")}) == ""
    # One namespace may say the same twice over.
    assert overlaps({"one": namespace("x{hex}", "x{int}")}) == ""


def test_what_is_stored_under_a_key_is_known_from_it() -> None:
    plain, other = namespace("x/{hex}"), namespace(revision="r2")
    naming = Naming([plain, other])
    one, two = plain.fingerprint(), other.fingerprint()
    for fingerprint, key, stored in [
        (one, "x/ab", "x/ab"),
        (one, "y/ab", stored_key(one, "y/ab")),  # of this namespace, and of none of its patterns
        (two, "x/ab", stored_key(two, "x/ab")),  # never under a key of another namespace
        (two, stored_key(one, "x/ab"), stored_key(two, stored_key(one, "x/ab"))),
    ]:
        assert naming.stored(fingerprint, key) == stored
        assert naming.of(fingerprint)([key]) == [stored]
        assert naming.classify(stored) == (fingerprint, key)
    for stored in ["y/ab", "", "x/ab ", stored_key(one, ""), "F" * 32 + "/k"]:
        assert naming.classify(stored) is None
    # From before the namespace had the pattern: nobody looks for it there.
    assert naming.classify(stored_key(one, "x/ab")) is None
    assert Naming([other]).classify("x/ab") is None


def test_a_key_that_no_peer_may_ask_for_is_of_no_namespace() -> None:
    plain, other = namespace("x/{text}"), namespace(revision="r2")
    naming = Naming([plain, other], 64)
    for just in ("x/" + "a" * 62, "x/" + "é" * 31, "x/" + "\udcff" * 62):
        assert naming.classify(just) == (plain.fingerprint(), just)
        own = stored_key(other.fingerprint(), just)
        assert naming.classify(own) == (other.fingerprint(), just), "the fingerprint does not count"
        assert naming.classify(just + "b") is None
        assert naming.classify(own + "b") is None
    assert Naming([plain]).classify("x/" + "a" * 100) is not None


def test_as_many_patterns_as_there_may_be_are_held_against_each_other_in_good_time() -> None:
    head = "m" * 200  # all of them begin alike: the slowest to tell apart
    spaces = {
        f"n{n}": namespace(
            *(f"{{model}}/{{hex}}.{KEYS_MAX * n + m}" for m in range(KEYS_MAX)),
            model=head,
            revision=f"r{n}",
        )
        for n in range(PATTERNS_MAX // KEYS_MAX)
    }
    began = time.process_time()
    assert overlaps(spaces) == ""
    assert time.process_time() - began < 10
    more = overlaps({**spaces, "more": namespace("x{hex}", revision="more")})
    assert more == f"{PATTERNS_MAX + 1} key patterns are more than {PATTERNS_MAX}"
