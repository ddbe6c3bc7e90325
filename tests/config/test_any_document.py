"""Whatever a file says, it is settings or faults: never another exception, and never a line without a key."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from soloflight.config import ConfigError, Settings, effective
from soloflight.config.faults import SHAPES
from soloflight.config.load import _Reading

SCALARS = st.one_of(
    st.booleans(),
    st.integers(min_value=-5, max_value=1 << 60),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["always", "off", "5s", "8MiB", "http://x", "127.0.0.1:1", "${A}", "${B}", "header:x", "default"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
)


def table(loc: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """A table with some of the keys that belong there, and some that do not."""
    keys = st.sampled_from([*SHAPES[loc].model_fields, "odd"])
    return st.dictionaries(keys, VALUES, max_size=5)


def named(loc: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(["default", "a", "b c"]), table(loc), max_size=2)


DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **{str(loc[0]): table(loc) | VALUES for loc in SHAPES if len(loc) == 1},
        "upstreams": named(("upstreams", "*")) | VALUES,
        "prices": named(("prices", "*")) | VALUES,
        "stage": st.lists(table(("stage", "*")) | VALUES, max_size=3) | VALUES,
        "odd": VALUES,
    },
)


@given(DOCUMENTS)
def test_any_document_is_settings_or_faults(document: Any) -> None:
    reading = _Reading("file", document, {})
    try:
        settings = reading.settings({"A": "a"})
    except ConfigError as error:
        faults = error.faults
    else:
        faults = ()
        assert isinstance(settings, Settings)
        assert effective(settings)
    assert all(fault.key and fault.expected and fault.found for fault in faults)
    assert all(str(fault).startswith("file: ") and len(str(fault).splitlines()) == 1 for fault in faults)
