"""The C header of a file; tests/tasks/targets/test_rewriting.py compiles one."""

from pteforge.formats.pte.c_header import c_header


def test_names_and_sizes():
    """Names become identifiers, whatever the file is called; there is a line for each method's memory."""
    text = c_header(bytes(range(41)), "8-bit net.pte", [("forward", 64), ("decode step", 8)])
    assert "#define _8_bit_net_pte_size 41 // bytes" in text
    assert "#define _8_bit_net_pte_forward_memory 64 // bytes of planned memory" in text
    assert "#define _8_bit_net_pte_decode_step_memory 8 //" in text
    lines = text.splitlines()
    start = lines.index("static const unsigned char _8_bit_net_pte[_8_bit_net_pte_size] = {") + 1
    assert bytes(map(int, "".join(lines[start : lines.index("};")]).split(","))) == bytes(range(41))


def test_same_content_and_name_make_the_same_text():
    """Nothing of the time or the machine is in it."""
    assert c_header(b"pte", "a.pte", []) == c_header(b"pte", "a.pte", [])
