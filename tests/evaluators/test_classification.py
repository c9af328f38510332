"""Classification by real samples: scikit-learn's digits, folders of classes, and what is no classification."""

import numpy as np
import pytest
from pteforge.errors import SourceError
from pteforge.evaluators import top_k
from pteforge.tests.evaluators.conftest import echo


def test_as_scikit_learn_counts(code):
    """The score on handwritten digits is scikit-learn's own, for one class and for two; a batch counts each row."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import top_k_accuracy_score

    images, digits = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=20, tol=0.5).fit(images[:300], digits[:300])
    module = code(
        "from sklearn.datasets import load_digits\n"
        "images, digits = map(torch.tensor, load_digits(return_X_y=True))\n"
        "def single():\n"
        "    yield from ((image, int(digit)) for image, digit in zip(images[300:400], digits[300:400]))\n"
        "batches = [(images[300:350], digits[300:350]), (images[350:400], digits[350:400])]\n"
    )

    def predict(rows, method="forward"):
        assert method == "forward"
        return torch.tensor(model.predict_proba(rows.reshape(-1, 64)))

    for k in (1, 2):
        expected = top_k_accuracy_score(digits[300:400], model.predict_proba(images[300:400]), k=k)
        assert 0.5 < expected < 1
        for dataset in ("single", "batches"):
            assert top_k(predict, dataset=f"{module}:{dataset}", k=k) == pytest.approx(expected)


def test_folders_of_classes(tmp_path):
    """Folders are classes in order, or in that of `classes`; files are read as they are, hidden ones left out."""
    for name, best in (("cat", 0), ("dog", 1), ("cow", 1)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "one.npy", np.eye(3, dtype=np.float32)[[best]])
    (tmp_path / "cat" / ".DS_Store").touch()
    assert top_k(echo, folder=str(tmp_path)) == pytest.approx(2 / 3)  # cat, cow, dog
    assert top_k(echo, folder=str(tmp_path), classes=["cat", "dog", "cow"]) == pytest.approx(2 / 3)
    assert top_k(echo, folder=str(tmp_path), classes=["dog", "cat", "cow"]) == 0
    assert top_k(echo, folder=str(tmp_path), samples=1) == 1
    with pytest.raises(SourceError, match=r"folders \['cow'\], .*not among `classes`"):
        top_k(echo, folder=str(tmp_path), classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        ("[]", {}, r"gives no sample"),
        ("[torch.ones(1, 3)]", {}, r"sample 0 of .* is Tensor; .* tuples of 2 values"),
        ("[(torch.ones(1, 3), 0, 0)]", {}, r"sample 0 of .* is tuple of 3"),
        ("[(torch.ones(1, 3), 0)]", {"k": 4}, r"output is \(1, 3\); top_k takes .* 4 or more classes"),
        ("[(torch.ones(2, 3), 0)]", {}, r"output is \(2, 3\); top_k takes \[labels, classes\], here with 1 labels"),
        ("[(torch.ones(1, 3), 0)]", {"output": 1}, r"the model has 1 outputs, and .* output: 1"),
        ("[(torch.ones(1, 3), 0)]", {"folder": "here"}, r"either `dataset` or files"),
    ],
)
def test_no_classification(dataset, arguments, message, code):
    """What cannot be scored is the user's to mend: the message says what was given."""
    with pytest.raises(SourceError, match=message):
        top_k(echo, dataset=f"{code(f'data = {dataset}')}:data", **arguments)


def test_names_and_files_that_are_not_there(tmp_path):
    """A missing module, name, folder or reader is named."""
    with pytest.raises(SourceError, match=r"argument 'nowhere:data' .*: No module named"):
        top_k(echo, dataset="nowhere:data")
    with pytest.raises(SourceError, match="there is no folder"):
        top_k(echo, folder=str(tmp_path / "gone"))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.jpg").touch()
    with pytest.raises(SourceError, match=r"one.jpg is not .*name a function"):
        top_k(echo, folder=str(tmp_path))
    (tmp_path / "cat" / "one.jpg").rename(tmp_path / "cat" / "one.npy")
    with pytest.raises(SourceError, match=r"one.npy cannot be read"):
        top_k(echo, folder=str(tmp_path))
