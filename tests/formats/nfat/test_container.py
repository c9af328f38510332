"""Version 1 is upstream's proposal, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.errors import InputError
from pteforge.formats.nfat.container import pack_v1, read_container

_IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        *(([backend_id], "cannot be a backend id") for backend_id in ("", "two words", "ümlaut", "nul\0", "A" * 33)),
        (["A"] * 65, "65 payloads"),
    ],
)
def test_invalid_ids(ids, problem):
    """Ids are printable ASCII without blanks, of at most 32 characters, and no more of them than readers accept."""
    with pytest.raises(InputError, match=problem):
        pack_v1([(backend_id, b"x") for backend_id in ids])


@given(st.lists(st.tuples(_IDS, st.binary(max_size=200)), max_size=8))
def test_round_trip(entries):
    """Every payload comes back under its id, in order; only `portable` needs no backend."""
    container = read_container(pack_v1(entries))
    assert container.version == 1
    assert [(payload.name, container.rebuild(payload)) for payload in container.payloads] == entries
    for payload in container.payloads:
        assert payload.description.backends == (() if payload.name == "portable" else (payload.name,))
        container.verify(payload)
