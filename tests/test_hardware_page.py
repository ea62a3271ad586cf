"""docs/hardware.md has what recipes state."""

from tools.hardware_table import PAGE, table, written


def test_the_table_is_that_of_now():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python tools/hardware_table.py"
    assert "| `sdxl/flow_grpo` | 1 GPU of 24 GB |" in table()
