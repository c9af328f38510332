"""The translator of examples/zoo: two methods, their embeddings once."""

from __future__ import annotations

import pteforge
import pytest
from pteforge.artifacts.pte.reader import read_pte


@pytest.mark.slow
def test_embeddings_are_there_once(example, zoo, tmp_path):
    """Both methods look tokens up in one table; the decoder's head, by the same numbers, is the portable kernels'."""
    import torch

    torch.manual_seed(0)
    definition = example("zoo/encoder_decoder").translator()
    table = definition.methods["encode"].module.embedding.weight.detach().numpy().tobytes()
    chosen = zoo("zoo/encoder_decoder.yaml").recipes["decoder-by-portable-kernels"]
    made = pteforge.export(definition, recipe=chosen, store=tmp_path / "store")

    pte = read_pte(made.pte)
    delegated = {method.name: bool(method.delegates) for method in pte.methods}
    assert delegated == {"encode": True, "decode": False, "get_vocab_size": False, "special_tokens": False}
    assert made.pte.count(table) == 1
    assert made.load().run("special_tokens") == [0, 1]
