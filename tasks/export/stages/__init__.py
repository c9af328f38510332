"""From modules to ATen programs, one stage a file."""
