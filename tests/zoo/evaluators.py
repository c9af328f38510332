"""Evaluators for tests: each is called with `predict`, and gives a number or fails in its own way."""

import networks
import torch


def fixed(predict, *, value: float = 0.5):
    """Looks at nothing."""
    del predict
    return value


def mean_output(predict, *, count: int = 1):
    """Mean of a model's outputs on inputs of [4]."""
    return float(torch.stack([predict(torch.full((4,), float(number))) for number in range(count)]).mean())


def largest(predict):
    """The largest output on ones of [2, 4]."""
    return float(predict(torch.ones(2, 4)).max())


def of_sixteen(predict):
    """The largest output on ones of [1, 16]."""
    return float(predict(torch.ones(1, 16)).max())


def likeness(predict):
    """Minus the largest difference to `Normed` with the weights of seed 0."""
    torch.manual_seed(0)
    wanted = networks.Normed().eval()
    values = torch.linspace(-1, 1, 8).reshape(2, 4)
    return 0.0 - float((predict(values) - wanted(values)).abs().max().detach())


def both_methods(predict):
    """Calls every method of `two_methods`, and its constants."""
    ones = torch.ones(2, 6)
    first = predict(ones)
    assert isinstance(first, torch.Tensor)
    assert first.shape == (2, 2)
    encoded = predict(ones[:1], method="encode")
    assert predict(method="version") == 3
    assert predict(method="sample_rate") == 16000.0
    return float(first.sum() + encoded.sum())


def several_outputs(predict):
    """Checks that nested outputs are a flat tuple."""
    outputs = predict((torch.full((2,), 3.0), torch.full((2,), 4.0)), torch.ones(2))
    assert type(outputs) is tuple
    total, difference, product = outputs
    assert total.tolist() == [8.0, 8.0]
    assert difference.tolist() == [-1.0, -1.0]
    assert product.tolist() == [12.0, 12.0]
    return 1.0


def earlier_outputs_stay(predict):
    """Whether outputs are still what they were after the next call."""
    outputs = [predict(torch.full((4,), float(number))) for number in range(3)]
    return float(all(torch.equal(output, torch.full((4,), number + 0.5)) for number, output in enumerate(outputs)))


def last_of_three(predict):
    """Sum of what `counter` gives the third time."""
    for _ in range(2):
        predict(torch.ones(2, 4))
    return float(predict(torch.ones(2, 4)).sum())


def random_input(predict):
    """Depends on the seed."""
    return float(predict(torch.randn(4)).sum())


def raising(predict):
    """Fails before it predicts."""
    del predict
    raise OSError("the labels are not there")


def raising_on_eager(predict):
    """Fails on the eager model only."""
    if predict.__qualname__.startswith("eager"):
        raise OSError("no images")
    return 0.0


def wrong_shape(predict):
    """Gives what no model of these takes."""
    return float(predict(torch.ones(7, 5)).sum())


def wrong_method(predict):
    """Asks for a method that is not there."""
    return float(predict(torch.ones(4), method="decode").sum())


def nothing(predict):
    """Forgets to return."""
    predict(torch.ones(4))


def a_tensor(predict):
    """Forgets to make it a number."""
    return predict(torch.ones(4)).mean()


def a_bool(predict):
    """Says whether it is good."""
    del predict
    return True


def not_a_number(predict):
    """0 of 0 were right."""
    del predict
    return float("nan")


NUMBER = 0.5


def lengths(predict):
    """The sum of the first output, of tokens of several lengths."""
    return sum(predict(torch.arange(n)[None], torch.ones(1, n))[0].sum().item() for n in (3, 8, 20))
