import subprocess
import sys

HEAVY = {"torch", "numpy", "PIL", "onnxruntime", "rapidocr", "rapidfuzz", "cv2"}


def test_naming_every_reward_imports_nothing_heavy():
    """A command line is checked in a fraction of a second."""
    code = """
import sys
from burnish.registry import names
print(*names("flow reward"))
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    rewards, modules = (line.split() for line in done.stdout.splitlines())
    assert {"ocr", "function", "border_darkness", "jpeg_compressibility"} <= set(rewards)
    assert "burnish.rewards.images.ocr" in modules
    assert not HEAVY & set(modules)
