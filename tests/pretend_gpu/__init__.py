import pytest

pytest.register_assert_rewrite("tests.pretend_gpu.runs")
