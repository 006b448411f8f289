from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.errors import ProcessorError
from dfc_runtime.events import Events
from dfc_runtime.kernels import flatten as kernels
from dfc_runtime.kernels.flatten import Collision, Rules
from dfc_runtime.kernels.jit import WORTH_COMPILING, Kernel
from dfc_runtime.processors import flatten
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted
from .test_jsontext import TEXTS, VALUES, Members, Raw, text

COMPILED = jitted(kernels.KERNEL)


def flat(document: str, **rules: Any) -> str:
    """One text flattened, by all ways at once."""
    column = pa.array([None, document, '{"a":{"b":1}}', document], pa.string()).slice(1)
    results = []
    for way in (
        kernels.flatten_python,
        kernels.flatten_buffers,
        lambda c, r: kernels.flatten_buffers(c, r, COMPILED),
    ):
        result = way(column, Rules(**rules))
        result.validate(full=True)
        results.append(result.to_pylist())
    assert results[0] == results[1] == results[2]
    assert results[0][0] == results[0][2]
    return results[0][0]  # type: ignore[no-any-return]


def collision(document: str, **rules: Any) -> tuple[int, str]:
    """Row and key of the collision, which all ways find."""
    column = pa.array(["{}", document])
    found = []
    for kernel in (None, kernels.flatten_rows, COMPILED):
        with pytest.raises(Collision) as caught:
            if kernel is None:
                kernels.flatten_python(column, Rules(on_collision="error", **rules))
            else:
                kernels.flatten_buffers(column, Rules(on_collision="error", **rules), kernel)
        found.append((caught.value.row, caught.value.key))
    assert found[0] == found[1] == found[2]
    return found[0]


# --- the documented examples -------------------------------------------------------------------

ORDER = (
    '{"order_id":"abc","customer":{"id":1,"address":{"city":"Berlin","zip":"10115"}},'
    '"tags":["vip"],"meta":{}}'
)


def test_documented_example() -> None:
    assert flat(ORDER) == (
        '{"order_id":"abc","customer__id":1,"customer__address__city":"Berlin",'
        '"customer__address__zip":"10115","tags":["vip"],"meta":{}}'
    )


def test_documented_depth() -> None:
    document = '{"customer":{"address":{"geo":{"lat":52.5,"lng":13.4}}}}'
    assert flat(document, max_depth=2) == ('{"customer__address__geo":{"lat":52.5,"lng":13.4}}')
    assert flat(document, max_depth=1) == ('{"customer__address":{"geo":{"lat":52.5,"lng":13.4}}}')
    deeper = '{"customer__address__geo__lat":52.5,"customer__address__geo__lng":13.4}'
    assert flat(document, max_depth=3) == flat(document) == deeper


def test_documented_collision() -> None:
    document = '{"a__b":1,"a":{"b":2}}'
    assert flat(document) == '{"a__b":2}'
    assert flat(document, on_collision="first") == '{"a__b":1}'
    assert collision(document) == (1, "a__b")
    assert flat('{"a":{"b":2},"a__b":1}', on_collision="last") == '{"a__b":1}'


def test_documented_settings_for_columns() -> None:
    document = '{"tags":["vip","new"],"meta":{},"none":[],"lines":[{"sku":"x","n":1},{}]}'
    rules = {"lists": "index", "empty_object": "drop"}
    assert flat(document, **rules) == (
        '{"tags__0":"vip","tags__1":"new","none":[],"lines__0__sku":"x","lines__0__n":1}'
    )


# --- each option -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "separator", [".", "_", '"', "\\", "\n", "é", "😀", "/", 'a"\\b', "x" * 16]
)
def test_separator_is_escaped(separator: str) -> None:
    found = flat('{"a":{"b":{"c":1}}}', separator=separator)
    assert json.loads(found) == {f"a{separator}b{separator}c": 1}


@pytest.mark.parametrize("empty", ["{}", "[]", "{ \n}", "[\t]"])
def test_empty_containers(empty: str) -> None:
    option = "empty_object" if empty[0] == "{" else "empty_list"
    other = "empty_list" if empty[0] == "{" else "empty_object"
    document = f'{{"a":{empty},"b":{{"c":{empty}}},"d":1}}'
    assert flat(document) == f'{{"a":{empty},"b__c":{empty},"d":1}}'
    assert flat(document, **{option: "null"}) == '{"a":null,"b__c":null,"d":1}'
    assert flat(document, **{option: "drop"}) == '{"d":1}'
    assert flat(document, **{other: "drop"}) == flat(document)
    # Also at the boundary, and inside of lists that are opened; never inside of whole lists.
    assert flat(f'{{"b":{{"c":{empty}}}}}', max_depth=1, **{option: "null"}) == '{"b__c":null}'
    listed = f'{{"a":[1,{empty}]}}'
    assert flat(listed, lists="index", **{option: "drop"}) == '{"a__0":1}'
    assert flat(listed, lists="index", **{option: "null"}) == '{"a__0":1,"a__1":null}'
    assert flat(listed, **{option: "drop"}) == listed


def test_rows_may_become_empty_and_empty_rows_stay() -> None:
    assert flat("{}", empty_object="drop") == "{}"
    assert flat(" { } ", empty_object="null") == " { } "
    assert flat('{"a":{"b":{}}}', empty_object="drop") == "{}"


def test_lists_by_index() -> None:
    many = ",".join(map(str, range(12)))
    assert flat(f'{{"a":[{many}]}}', lists="index") == (
        "{" + ",".join(f'"a__{i}":{i}' for i in range(12)) + "}"
    )
    nested = '{"a":[[1,[2]],{"b":[3]}]}'
    assert flat(nested, lists="index") == '{"a__0__0":1,"a__0__1__0":2,"a__1__b__0":3}'
    assert flat(nested, lists="index", max_depth=1) == '{"a__0":[1,[2]],"a__1":{"b":[3]}}'
    assert flat(nested, lists="index", max_depth=2) == ('{"a__0__0":1,"a__0__1":[2],"a__1__b":[3]}')
    assert flat(nested) == nested


WRAPPERS = [
    '{"_base64":"AAE="}',
    '{"_unchanged":true}',
    '{ "_base64" : "" }',
    '{"_unchanged":\ttrue }',
]
NO_WRAPPERS = [
    '{"_base64":1}', '{"_unchanged":false}', '{"_unchanged":"true"}', '{"_base64":"","x":1}',
    '{"_base6":""}', '{"_base64x":""}', '{"_unchanged":truer}', '{"_base64":true}',
]  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_are_values(wrapper: str) -> None:
    assert flat(f'{{"a":{wrapper}}}') == f'{{"a":{wrapper}}}'
    assert flat(f'{{"a":{{"b":{wrapper}}}}}') == f'{{"a__b":{wrapper}}}'
    assert flat(f'{{"a":[{wrapper}]}}', lists="index") == f'{{"a__0":{wrapper}}}'
    assert flat(wrapper) == wrapper


@pytest.mark.parametrize("wrapper", NO_WRAPPERS)
def test_what_only_looks_like_a_wrapper_is_an_object(wrapper: str) -> None:
    assert flat(f'{{"a":{wrapper}}}').startswith('{"a___')


# --- text --------------------------------------------------------------------------------------


def test_values_and_keys_keep_their_text() -> None:
    digits = "123456789012345678901234567890"
    leaves = ["1.00", "-0", "1E5", digits, '"\\u00e9\\/"', "[1, 2 ]", "null", "true"]
    for leaf in leaves:
        assert flat(f'{{"a":{{"b":{leaf}}},"c":{leaf}}}') == f'{{"a__b":{leaf},"c":{leaf}}}'
    assert flat('{"\\u00e9\\"":{"\\ud83d\\ude00":1}}') == '{"\\u00e9\\"__\\ud83d\\ude00":1}'


def test_flat_rows_stay_as_they_stand() -> None:
    for document in (' {"a" : 1,\n"b":[ {} ] } ', "{}", '{"a":{"_base64":"x"}}', "[1]", "7", '"x"'):
        assert flat(document) == document
    column = pa.array(['{"a": 1}', None])
    assert kernels.flatten_python(column, Rules()) is column
    assert kernels.flatten_buffers(column, Rules()) is column


def test_space_between_fields_goes_with_the_nesting() -> None:
    assert flat('{ "a" : { "b" : 1 , "c":[ 1 ] } , "d" : "x y" }') == (
        '{"a__b":1,"a__c":[ 1 ],"d":"x y"}'
    )


@pytest.mark.parametrize(
    "broken",
    ["", " ", "{", '{"a', '{"a"', '{"a":', '{"a":{', '{"a":{"b":1}', '{"a":{"b":1}}x', '{"a":{"b"1}}',
     '{"a":{"b":1},}', '{"a":{"b":}}', '{"a":{,"b":1}}', '{"a" {"b":1}}', '{"a":{"b":1]}', '{"a":{"_base64"',
     '{"a":{"_base64":"', '{"a":{"_unchanged":t', '{"a":{"_u', "{1:{}}"],
)  # fmt: skip
def test_what_is_no_object_stays_as_it_is(broken: str) -> None:
    assert flat(broken, lists="index", empty_object="drop") == broken


# --- collisions --------------------------------------------------------------------------------


def test_keys_are_the_same_when_they_mean_the_same() -> None:
    assert flat('{"a\\u005f\\u005fb":1,"a":{"b":2}}') == '{"a\\u005f\\u005fb":2}'
    assert flat('{"a":{"b":1},"a":{"\\u0062":2}}', on_collision="first") == '{"a__b":1}'
    assert flat('{"\\ud83d\\ude00":1,"😀":2}') == '{"\\ud83d\\ude00":2}'
    assert collision('{"x":0,"é":{"\\u0022":1},"\\u00e9__\\"":2}') == (1, 'é__"')
    # Halves of surrogate pairs have no UTF-8 form, and are still not the same.
    both = '{"\\ud800":1,"\\ud801":2,"\ufffd":3,"n":{"x":1}}'
    assert flat(both) == both.replace('"n":{"x":1}', '"n__x":1')


def test_the_first_place_and_the_last_value() -> None:
    document = '{"a__b":1,"c":{},"a":{"b":{}},"d":4,"a":{"b":[5]}}'
    assert flat(document) == '{"a__b":[5],"c":{},"d":4}'
    assert flat(document, on_collision="first") == '{"a__b":1,"c":{},"d":4}'
    assert flat(document, empty_object="null") == '{"a__b":[5],"c":null,"d":4}'
    assert flat('{"a__b":1,"a":{"b":{}}}', empty_object="null") == '{"a__b":null}'
    assert flat('{"a__b":1,"a":{"b":{}}}', empty_object="drop") == '{"a__b":1}'


def test_keys_that_come_twice_in_the_row_collide_too() -> None:
    assert flat('{"a":1,"b":2,"a":3}') == '{"a":3,"b":2}'
    assert flat('{"a":1,"b":2,"a":3}', on_collision="first") == '{"a":1,"b":2}'
    assert collision('{"a":1,"a":1}') == (1, "a")


def test_a_name_that_is_no_json_is_no_collision() -> None:
    broken = '{"\\x":1,"\\x":2}'
    column = pa.array([broken])
    for kernel in (kernels.flatten_rows, COMPILED):
        found = kernels.flatten_buffers(column, Rules(on_collision="error"), kernel)
        assert found.to_pylist() == kernels.flatten_python(column, Rules()).to_pylist() == [broken]


def test_index_and_name_may_collide() -> None:
    assert flat('{"a":[1,2],"a__1":3}', lists="index") == '{"a__0":1,"a__1":3}'


# --- any document ------------------------------------------------------------------------------


def is_wrapper(value: Members) -> bool:
    (name, inner), *rest = value
    return not rest and (
        (name == "_base64" and type(inner) is str) or (name == "_unchanged" and inner is True)
    )


def oracle(document: Members, rules: Rules) -> list[tuple[str, Any]] | None:
    """Keys and values as the rules read, over parsed objects; None for a collision."""
    found: dict[str, Any] = {}
    collided = False

    def put(key: str, value: Any) -> None:
        nonlocal collided
        if key in found:
            collided = True
            if rules.on_collision == "first":
                return
        found[key] = value

    def visit(key: str, value: Any, depth: int) -> None:
        is_object, is_list = isinstance(value, Members), type(value) is list
        deeper = rules.max_depth is None or depth < rules.max_depth
        if (is_object or is_list) and not value:
            policy = rules.empty_object if is_object else rules.empty_list
            if policy != "drop":
                put(key, None if policy == "null" else value)
        elif is_object and deeper and not is_wrapper(value):
            for name, inner in value:
                visit(f"{key}{rules.separator}{name}", inner, depth + 1)
        elif is_list and deeper and rules.lists == "index":
            for index, inner in enumerate(value):
                visit(f"{key}{rules.separator}{index}", inner, depth + 1)
        else:
            put(key, value)

    for name, value in document:
        visit(name, value, 0)
    return None if collided and rules.on_collision == "error" else list(found.items())


KEYS = st.sampled_from(
    ["a", "b", "a__b", "0", "a__0", 'q"', "é", "😀", "", "_base64", "_unchanged"]
)
NESTED: st.SearchStrategy[Any] = st.recursive(
    VALUES | TEXTS | st.just(True),
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(st.tuples(KEYS, inner), max_size=4).map(Members),
    max_leaves=10,
)
ROWS = st.lists(st.tuples(KEYS, NESTED), max_size=4).map(Members)
RULES = st.builds(
    Rules,
    separator=st.sampled_from(["__", ".", '"', "\\", "é"]),
    max_depth=st.none() | st.integers(1, 3),
    on_collision=st.sampled_from(["last", "first", "error"]),
    empty_object=st.sampled_from(["preserve", "drop", "null"]),
    lists=st.sampled_from(["preserve", "index"]),
    empty_list=st.sampled_from(["preserve", "drop", "null"]),
)
GAPS = st.sampled_from(["", "", " ", "\n\t "])


def parsed(document: str) -> Members:
    result = json.loads(document, object_pairs_hook=Members, parse_int=Raw, parse_float=Raw)
    assert isinstance(result, Members)
    return result


@given(st.lists(ROWS, min_size=1, max_size=3), RULES, st.booleans(), GAPS)
@settings(max_examples=250, deadline=None)
def test_all_ways_agree_with_the_rules(
    rows: list[Members], rules: Rules, ascii_only: bool, gap: str
) -> None:
    documents = [text(row, ascii_only, gap) for row in rows]
    column = pa.array(documents, pa.string())
    expected = [oracle(parsed(document), rules) for document in documents]
    results = []
    for way in (
        lambda: kernels.flatten_python(column, rules),
        lambda: kernels.flatten_buffers(column, rules),
        lambda: kernels.flatten_buffers(column, rules, COMPILED),
    ):
        try:
            results.append(way().to_pylist())
        except Collision as error:
            assert rules.on_collision == "error"
            assert error.row == expected.index(None)
            results.append(error.key)
    assert results[0] == results[1] == results[2]
    if None in expected:
        assert isinstance(results[0], str)
    else:
        assert [list(parsed(found)) for found in results[0]] == expected


PIECES = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"', '"a"', '"a":{', '"b":1', '"_base64":"x"', " ", "1", '"_unchanged"']
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map("".join), RULES)
@settings(max_examples=250, deadline=None)
def test_all_ways_agree_on_rubbish(rubbish: str, rules: Rules) -> None:
    document = '{"a":' + rubbish
    if rules.on_collision != "error":
        column = pa.array([document])
        expected = kernels.flatten_python(column, rules).to_pylist()
        assert kernels.flatten_buffers(column, rules).to_pylist() == expected
        assert kernels.flatten_buffers(column, rules, COMPILED).to_pylist() == expected


# --- hostile rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [70, 100_000])
def test_depth_is_no_matter(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    key = "__".join(["a"] * depth)
    lists = '{"a":' + "[" * depth + "]" * depth + "}"
    for way in (kernels.flatten_python, lambda c, r: kernels.flatten_buffers(c, r, COMPILED)):
        assert way(pa.array([deep]), Rules()).to_pylist() == [f'{{"{key}":1}}']
        assert way(pa.array([lists]), Rules()).to_pylist() == [lists]
        (opened,) = way(pa.array([lists]), Rules(lists="index", empty_list="null")).to_pylist()
        assert opened == '{"a' + "__0" * (depth - 1) + '":null}'
        (kept,) = way(pa.array([deep]), Rules(max_depth=2)).to_pylist()
        assert kept.startswith('{"a__a__a":{"a":')
        unclosed = '{"a":' * depth
        assert way(pa.array([unclosed]), Rules()).to_pylist() == [unclosed]


def test_thousands_of_keys() -> None:
    size = 20_000
    wide = "{" + ",".join(f'"k{i}":{{"x":{i}}}' for i in range(size)) + "}"
    expected = "{" + ",".join(f'"k{i}__x":{i}' for i in range(size)) + "}"
    column = pa.array([wide, '{"a":{"b":1}}', wide])
    for way in (kernels.flatten_python, lambda c, r: kernels.flatten_buffers(c, r, COMPILED)):
        assert way(column, Rules()).to_pylist() == [expected, '{"a__b":1}', expected]


def test_keys_made_to_share_a_hash_do_not_slow_it_down() -> None:
    """A polynomial with an even number of bits has texts of the same hash that anybody can write."""
    pair = ["a", "b"]
    for _ in range(10):
        one, other = pair
        pair = [one + other, other + one]
    hashes = {kernels.hash_on(p.encode(), 0, len(p), kernels._START) for p in pair}
    assert len(hashes) == 1, "the attack of the next lines works"
    rng = random.Random(1)
    keys = {"".join(rng.choice(pair) for _ in range(12)) for _ in range(300)}
    document = "{" + ",".join(f'"{key}":{{"x":1}}' for key in sorted(keys)) + "}"
    expected = "{" + ",".join(f'"{key}__x":1' for key in sorted(keys)) + "}"
    column = pa.array([document, '{"a":{"b":1}}'])
    found = kernels.flatten_buffers(column, Rules(), COMPILED).to_pylist()
    assert found == [expected, '{"a__b":1}']


def test_more_than_a_column_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LIMIT", 20_000)
    long = "k" * 900
    leaves = ",".join(f'"{i}":1' for i in range(30))
    column = pa.array([f'{{"{long}":{{{leaves}}}}}'])
    with pytest.raises(kernels.TooLarge):
        kernels.flatten_python(column, Rules())
    for kernel in (None, COMPILED):
        with pytest.raises(kernels.TooLarge):
            kernels.flatten_buffers(column, Rules(), kernel)
    events = Events(pa.record_batch({"after": column}), pipeline="p")
    with pytest.raises(ProcessorError, match=r"flatten `flat`: .* more than 2 GB"):
        flatten(events, id="flat")


def test_output_grows_as_needed() -> None:
    long = "k" * 2000
    leaves = ",".join(f'"{i}":1' for i in range(300))
    document = f'{{"{long}":{{{leaves}}}}}'
    found = kernels.flatten_buffers(pa.array([document, document]), Rules(), COMPILED).to_pylist()
    expected = "{" + ",".join(f'"{long}__{i}":1' for i in range(300)) + "}"
    assert found == [expected, expected]


# --- the processor -----------------------------------------------------------------------------


def events(**columns: list[Any]) -> Events:
    return Events(pa.record_batch(columns), pipeline="p")


def test_both_images_are_flattened_and_nulls_stay() -> None:
    found = flatten(
        events(
            op=["c", "u", "d"],
            before=pa.array([None, '{"a":{"b":1}}', '{"a":{"b":2}}']),
            after=pa.array(['{"a":{"b":3}}', '{"a":4}', None]),
        ),
        id="flat",
    )
    assert found.before.text.to_pylist() == [None, '{"a__b":1}', '{"a__b":2}']
    assert found.after.text.to_pylist() == ['{"a__b":3}', '{"a":4}', None]
    assert found.replaced == {"before", "after"}


def test_only_carried_columns_are_touched_and_only_changed_ones_replaced() -> None:
    found = flatten(events(op=["c"], after=['{"a":{"b":3}}']), id="flat", separator=".")
    assert found.batch.schema.names == ["op", "after"]
    assert found.after.text.to_pylist() == ['{"a.b":3}']
    same = events(op=["c"], after=['{"a":3}'])
    assert flatten(same, id="flat") is same
    without = events(op=["c"])
    assert flatten(without, id="flat") is without


def test_a_collision_fails_the_batch_and_names_the_event() -> None:
    batch = events(
        position=["01", "02"],
        event_id=["dfid:one", "dfid:two"],
        after=["{}", '{"a__b":1,"a":{"b":2}}'],
    )
    with pytest.raises(ProcessorError) as caught:
        flatten(batch, id="flat", on_collision="error")
    assert str(caught.value) == "flatten `flat`: two fields give the key `a__b` in event dfid:two"
    long = "k" * 1000
    batch = events(position=["01"], after=[f'{{"{long}":1,"{long}":1}}'])
    with pytest.raises(ProcessorError, match=r"k{200}…` in event 01$"):
        flatten(batch, id="flat", on_collision="error")


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="`lists` is one of preserve, index"):
        flatten(events(after=["{}"]), id="flat", lists="indexed")


def test_many_rows_are_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(['{"a":{"b":1}}'] * 10)
    kernel = Kernel(kernels.flatten_rows, *kernels.KERNEL._helpers)
    monkeypatch.setattr(kernels, "KERNEL", kernel)
    slow = kernels.flatten(column, Rules())
    kernel.seen = WORTH_COMPILING
    assert kernels.flatten(column, Rules()).equals(slow)
    assert kernel._compiled is not None
    monkeypatch.setenv("DFC_JIT", "0")
    off = Kernel(kernels.flatten_rows, *kernels.KERNEL._helpers)
    off.seen = WORTH_COMPILING
    monkeypatch.setattr(kernels, "KERNEL", off)
    assert kernels.flatten(column, Rules()).equals(slow)
    assert off._compiled is None
