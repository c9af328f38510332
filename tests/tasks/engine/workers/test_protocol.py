"""The parent's and the process's ends of a call: progress, limits, the tail of a log."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.tasks.engine.workers.protocol import ProgressReader, ProgressWriter, tail_lines


@pytest.mark.parametrize("total", [3, None])
def test_progress_is_reported_while_the_call_runs(run, announcement, total):
    """The pool sees the first sample while the call waits for what the pool does then, and of the last one."""
    heard = []

    def progressed(done: int, total: int | None) -> None:
        heard.append((done, total))
        if done == 1:
            announcement.write_text("go on")

    assert run("count_samples", [str(announcement), total], progressed=progressed).result == "go on"
    assert (heard[0], heard[-1]) == ((1, total), (3 if total else 1, total))


@pytest.fixture
def pipe():
    """The reading and the writing end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_nobody_reads(pipe):
    """A call never waits for a reader, also with many times what a pipe holds; the reader then gets whole records."""
    reading, writing = pipe
    writer = ProgressWriter(writing)
    for _ in range(20_000):
        writer(7, 7)  # the last sample is always reported
    heard = []
    ProgressReader(lambda *progress: heard.append(progress)).add(os.read(reading, 1 << 20))
    assert heard == [(7, 7)]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, reading)
    os.close(null)
    writer(7, 7)


def test_records_may_come_in_parts(pipe):
    """A record that is cut by the size of a read is reported when its rest arrives."""
    reading, writing = pipe
    ProgressWriter(writing)(1, None)
    ProgressWriter(writing)(2, None)
    stream = os.read(reading, 1 << 10)
    heard = []
    reader = ProgressReader(lambda *progress: heard.append(progress))
    for part in (stream[:20], stream[20:]):
        reader.add(part)
    assert heard == [(1, None), (2, None)]


@given(st.binary())
def test_tail_is_always_safe_to_print(log):
    """Whatever the bytes, the tail is text without unprintable characters, and not too much of it; other text stays."""
    tail = tail_lines(log)
    assert all(character in "\n\t" or character.isprintable() for character in tail)
    assert len(tail.splitlines()) <= 40
    assert tail_lines("\u26a1 ok\n\x1b[31mred\n".encode() + b"\xff\n\n") == "\u26a1 ok\n\\x1b[31mred\n\ufffd"


def test_tails_show_what_led_to_a_traceback():
    """Calls in installed packages are left out, so that there is room for causes, and for what was printed before."""
    inner = "".join(f'  File "/x/site-packages/torch/a{number}.py", line 1, in f\n    f()\n' for number in range(30))
    own = '  File "/x/nets.py", line 1, in build\n    g()\n'
    traceback = f"Traceback (most recent call last):\n{own}{inner}{own}"
    before = (
        "[kernel.cpp:1] refused\n[cpuinfo_utils.cpp:71] Reading file\n"
        "W1126 17:59:23.750000 79 torch/utils/_pytree.py:630] <enum 'Kind'> is an Enum subclass\n"
        "/x/lib/python3.11/copyreg.py:105: FutureWarning: `LeafSpec` is deprecated\n  return cls.__new__(cls)\n"
    )
    log = f"{before}{traceback}ValueError: first\n\nwhile handling\n\n{traceback}TypeError: second\n"
    tail = tail_lines(log.encode()).splitlines()
    assert tail[:2] == ["[kernel.cpp:1] refused", "Traceback (most recent call last):"]
    assert {"ValueError: first", "TypeError: second", "  ... 28 calls"} < {*tail}
    assert [tail.count(line) for line in own.splitlines()] == [4, 4]
    long = f"refused\nTraceback (most recent call last):\n{own * 50}ValueError: deep\n"
    assert tail_lines(long.encode()).splitlines()[:2] == ["refused", "Traceback (most recent call last):"]
    assert [any(f"a{number}.py" in line for line in tail) for number in (0, 1, 28, 29)] == [True, False, False, True]
