"""Buckets as files have them: which one inputs fit, and how they are padded."""

import pytest
import torch
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.pte.buckets import Bucket, fit_bucket, read_buckets


def bucket(batch, length, **fields):
    """Of tokens [batch, length] and their mask; the output is longer by as many tokens."""
    sizes = [(0, 0, batch, "batch"), (0, 1, length, "length"), (1, 0, batch, "batch"), (1, 1, length, "length")]
    name, sizes_by_name = f"forward_{batch}_{length}", {"batch": batch, "length": length}
    return Bucket(name=name, method="forward", sizes=sizes_by_name, inputs=tuple(sizes), **fields)


PADDED = {"padding": (7, 0), "outputs": ((0, 1, 0, 1),)}


def stored(*buckets):
    return {f"buckets.{each.name}": each.model_dump_json() for each in buckets}


def tokens(batch, length):
    return [torch.ones(batch, length, dtype=torch.int64), torch.ones(batch, length)]


@pytest.mark.parametrize(
    ("batch", "length", "name"),
    [
        (1, 1, "forward_1_8"),
        (1, 8, "forward_1_8"),
        (1, 9, "forward_1_32"),
        (2, 8, "forward_4_8"),
        (4, 32, "forward_4_32"),
    ],
)
def test_the_smallest_that_fits(batch, length, name):
    """Whatever order they are stored in, the smallest one that inputs fit is chosen, of all combinations."""
    made = [bucket(*sizes, **PADDED) for sizes in ((4, 32), (1, 32), (4, 8), (1, 8))]
    buckets = read_buckets({"general.name": "net", **stored(*made)})["forward"]
    chosen, padded = fit_bucket(buckets, inputs := tokens(batch, length))
    assert chosen.name == name
    assert [tuple(value.shape) for value in padded] == [tuple(chosen.sizes.values())] * 2
    for value, given, fill in zip(padded, inputs, PADDED["padding"], strict=True):
        assert torch.equal(value[:batch, :length], given)
        assert value.sum() == given.sum() + fill * (value.numel() - given.numel())
    (cut,) = chosen.cut(inputs, [torch.zeros(batch, chosen.sizes["length"], 3)])
    assert cut.shape == (batch, length, 3)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (tokens(1, 33), r"no bucket of 'forward' .* largest is forward_4_32 .*: input 0 has size 33 in dimension 1"),
        (tokens(5, 8), "input 0 has size 5 in dimension 0, more than 4"),
        ([*tokens(1, 8)[:1], torch.ones(1, 9)], "inputs have several sizes in the dimension 'length'"),
        (tokens(1, 8)[:1], "input 1 has no dimension 0"),
        ([1.5, torch.ones(1, 8)], "input 0 has no dimension 0"),
    ],
)
def test_inputs_that_fit_none(inputs, problem):
    """The error names the largest bucket, and why it does not take them."""
    with pytest.raises(InputError, match=problem):
        fit_bucket([bucket(1, 8, **PADDED), bucket(4, 32, **PADDED)], inputs)


def test_nobody_says_how_to_pad():
    """Inputs of exactly its sizes are taken as they are; smaller ones are the caller's to pad."""
    inputs = tokens(1, 8)
    chosen, same = fit_bucket([bucket(1, 8)], inputs)
    assert all(one is another for one, another in zip(inputs, chosen.cut(inputs, same), strict=True))
    with pytest.raises(InputError, match=r"smaller than .*forward_1_8 .*run 'forward_1_8'"):
        fit_bucket([bucket(1, 8)], tokens(1, 7))


@pytest.mark.parametrize("damage", [('"method"', '"methods"'), ("[0,1,8", "[0,-1,8"), ("{", ""), ('"length"', "null")])
def test_damaged_entries(damage):
    """What is no bucket is a damaged file, by the key."""
    ((key, text),) = stored(bucket(1, 8)).items()
    assert damage[0] in text
    with pytest.raises(FileFormatError, match=r"damaged metadata 'buckets\.forward_1_8'"):
        read_buckets({key: text.replace(*damage)})
